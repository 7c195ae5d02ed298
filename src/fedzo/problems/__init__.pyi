# The public names, and the file of each; lazy_loader and type checkers read this list.

from . import attack as attack
from .attack.problem import Attack as Attack
from .function import FunctionObjective as FunctionObjective
from .hyperparameters import Tuning as Tuning
from .hyperparameters import tuning as tuning
from .network import TorchProblem as TorchProblem
from .quadratic import Quadratic as Quadratic
from .sentiment import TextProblem as TextProblem
from .sentiment import text as text
from .softmax_regression import Softmax as Softmax
from .softmax_regression import softmax as softmax

PROBLEMS: dict[str, str]
