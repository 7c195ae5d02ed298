# The public names, and the file of each; lazy_loader and type checkers read this list.

from .adaptive import Adaptive as Adaptive
from .base import Search as Search
from .base import SearchContext as SearchContext
from .descent import LBFGS as LBFGS
from .population import CMA as CMA
from .population import TPE as TPE
