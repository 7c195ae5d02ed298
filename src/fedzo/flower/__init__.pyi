from .client import make_client_app as make_client_app
from .federation import FlowerFederation as FlowerFederation
from .federation import FlowerSettings as FlowerSettings
from .grid import InProcessGrid as InProcessGrid
from .server import make_server_app as make_server_app
from .strategy import FedzoStrategy as FedzoStrategy
from .torch import torch_client as torch_client
