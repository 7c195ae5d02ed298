"""Black-box searches across a federation, each a generator of tasks.

May import: algorithms.base, uplinks and core.
"""

from fedzo.algorithms.search.adaptive import Adaptive
from fedzo.algorithms.search.base import Search, SearchContext
from fedzo.algorithms.search.descent import LBFGS
from fedzo.algorithms.search.population import CMA, TPE

__all__ = ["CMA", "LBFGS", "TPE", "Adaptive", "Search", "SearchContext"]
