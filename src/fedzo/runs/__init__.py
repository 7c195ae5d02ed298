"""A run from its first query to its last file.

The call ``minimize``, its options, the loop over rounds, the numbers in place of "auto", the
result, the run folder, the callbacks, and the registry of components by name. May import: plots,
theory, algorithms, uplinks, problems, variables and core.
"""

from fedzo.runs import callbacks as callbacks
from fedzo.runs.history import read_history as read_history
from fedzo.runs.history import read_runs as read_runs
from fedzo.runs.loop import Job as Job
from fedzo.runs.loop import run_job as run_job
from fedzo.runs.minimize import minimize as minimize
from fedzo.runs.options import FlowerSettings as FlowerSettings
from fedzo.runs.options import RunOptions as RunOptions
from fedzo.runs.registry import describe_parts as describe_parts
from fedzo.runs.registry import make_parts as make_parts
from fedzo.runs.result import Progress as Progress
from fedzo.runs.result import Result as Result
from fedzo.runs.result import Status as Status
from fedzo.runs.store import RunFolder as RunFolder
from fedzo.runs.store import flatten as flatten
from fedzo.runs.store import unflatten as unflatten
