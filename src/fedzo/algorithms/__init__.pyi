# The public names, and the file of each; lazy_loader and type checkers read this list.

from . import schedules as schedules
from .base import Algorithm as Algorithm
from .base import RoundInfo as RoundInfo
from .dzopa import DZOPA as DZOPA
from .fedavg import FedAvg as FedAvg
from .fedbuff import FedBuff as FedBuff
from .fedprox import FedProx as FedProx
from .fedzo import FedZO as FedZO
from .scaffold import Scaffold as Scaffold
from .search.adaptive import Adaptive as Adaptive
from .search.descent import LBFGS as LBFGS
from .search.population import CMA as CMA
from .search.population import TPE as TPE
from .zo_sgd import ZOSGD as ZOSGD
from .zone_s import ZoneS as ZoneS
