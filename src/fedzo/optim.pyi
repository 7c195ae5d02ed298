# The public names, and the file of each; lazy_loader and type checkers read this list.

from .api.optim import ZO as ZO
from .api.optim import ZOTrainerMixin as ZOTrainerMixin
