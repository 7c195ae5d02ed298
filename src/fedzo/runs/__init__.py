"""A run from its first query to its last file.

The call ``minimize``, its options, the loop over rounds, the numbers in place of "auto", the
result, the run folder, the callbacks, and the registry of components by name. May import: plots,
theory, algorithms, uplinks, problems, variables and core.
"""

from fedzo.runs import callbacks as callbacks
from fedzo.runs.history import read_history, read_runs
from fedzo.runs.loop import Job, drive
from fedzo.runs.minimize import minimize, perform
from fedzo.runs.options import FlowerSettings, RunOptions
from fedzo.runs.registry import describe_parts, make_parts
from fedzo.runs.result import Progress, Result, Status
from fedzo.runs.store import RunFolder, flatten, unflatten

__all__ = [
    "FlowerSettings",
    "Job",
    "Progress",
    "Result",
    "RunFolder",
    "RunOptions",
    "Status",
    "callbacks",
    "describe_parts",
    "drive",
    "flatten",
    "make_parts",
    "minimize",
    "perform",
    "read_history",
    "read_runs",
    "unflatten",
]
