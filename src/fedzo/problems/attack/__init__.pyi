from .problem import Attack as Attack
from .problem import attack as attack
