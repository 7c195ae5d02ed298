"""Problems to optimise, and the names that configurations give them.

Each is an :class:`~fedzo.Objective`: custom functions, quadratics, softmax regression, torch
modules, sentiment of texts, attacks and tuning. The public names are listed in ``__init__.pyi`` and
imported when they are first used. May import: models, data, variables and core.
"""

import lazy_loader as _lazy

__getattr__, __dir__, __all__ = _lazy.attach_stub(__name__, __file__)

# The factory of each name, written like that of a custom problem. Its parameters are the keys of
# the [problem] table; ``seed`` receives run.data_seed.
PROBLEMS: dict[str, str] = {
    "softmax": "fedzo.problems.softmax_regression:softmax",
    "attack": "fedzo.problems.attack.problem:attack",
    "quadratic": "fedzo.problems.quadratic:Quadratic",
    "tuning": "fedzo.problems.hyperparameters:tuning",
    "text": "fedzo.problems.sentiment:text",
}
