"""Numbers in, pictures out: curves, figures of several axes, data splits, the page of a report.

Nothing here knows of run folders or of the paper; matplotlib is imported when something is drawn.
May import: core.
"""
