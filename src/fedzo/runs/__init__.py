"""A run from its first query to its last file.

The call ``minimize``, its options, the loop over rounds, numbers in place of "auto", the result,
the run folder, and the watchers of a run: progress, trackers, signals. May import: plots, theory,
algorithms, uplinks, problems, variables and core.
"""

from fedzo.runs import callbacks as callbacks
