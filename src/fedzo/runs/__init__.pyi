# The public names, and the file of each; lazy_loader and type checkers read this list.

from . import callbacks as callbacks
from .history import read_history as read_history
from .history import read_runs as read_runs
from .loop import Job as Job
from .loop import run_job as run_job
from .options import FlowerSettings as FlowerSettings
from .options import RunOptions as RunOptions
from .registry import describe_parts as describe_parts
from .registry import make_parts as make_parts
from .result import Progress as Progress
from .result import Result as Result
from .result import Status as Status
from .store import RunFolder as RunFolder
from .store import flatten as flatten
from .store import unflatten as unflatten
