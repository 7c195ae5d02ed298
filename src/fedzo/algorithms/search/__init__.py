"""Black-box searches across a federation, each a generator of tasks.

May import: algorithms.base, uplinks and core.
"""
