"""Calls for one kind of user each: tuning, attacks, ask and tell, SciPy's ``minimize``.

Each is a thin layer over :func:`fedzo.minimize` in the words of its users. May import: runs
and what lies below it.
"""
