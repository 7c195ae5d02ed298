from .client import make_client_app as make_client_app
from .client import torch_client as torch_client
from .engine import FlowerEngine as FlowerEngine
from .engine import FlowerSettings as FlowerSettings
from .server import make_server_app as make_server_app
from .simulation import InProcessGrid as InProcessGrid
from .strategy import FedzoStrategy as FedzoStrategy
