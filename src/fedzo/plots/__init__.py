"""Numbers in, pictures out: curves, figures with several axes, data splits, the page of a report.

``series`` computes the numbers of a picture from histories, and ``figures`` or the page draw them.

This room does not use run folders. It imports matplotlib when it draws. May import: core.
"""
