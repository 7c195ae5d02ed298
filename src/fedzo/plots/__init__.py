"""Numbers in, pictures out: curves, figures of several axes, data splits, the page of a report.

``series`` makes the numbers of a picture of histories, and ``figures`` or the page draw them.

Nothing here knows of run folders or of the paper; matplotlib is imported when something is drawn.
May import: core.
"""
