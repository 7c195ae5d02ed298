# The public names, and the file of each; lazy_loader and type checkers read this list.

from .advice import LocalStepsRange as LocalStepsRange
from .advice import Rate as Rate
from .advice import Steps as Steps
from .advice import best_local_steps as best_local_steps
from .advice import best_steps as best_steps
from .advice import corollary as corollary
from .advice import largest_local_steps as largest_local_steps
from .advice import orders_of_local_steps as orders_of_local_steps
from .advice import table_one as table_one
from .bounds import Bound as Bound
from .bounds import Constants as Constants
from .bounds import Limit as Limit
from .bounds import Moments as Moments
from .bounds import Setting as Setting
from .bounds import Term as Term
from .bounds import bound as bound
from .bounds import limit as limit
from .bounds import moments as moments
from .estimate import Estimate as Estimate
from .estimate import estimate as estimate
from .privacy import ChannelPrivacy as ChannelPrivacy
from .privacy import channel_privacy as channel_privacy
from .report import Report as Report
from .report import report as report
