"""Problems to optimise, by the name that a configuration gives them.

Each is an :class:`~fedzo.Objective`: functions of one's own, quadratics, softmax regression,
attacks and tuning. May import: models, data, variables and core.
"""

# What a name stands for, in the notation that a user's own problem has too. The factory's
# parameters are the keys of the [problem] table; ``seed`` receives run.data_seed.
PROBLEMS: dict[str, str] = {
    "softmax": "fedzo.problems.softmax:softmax",
    "attack": "fedzo.problems.attack.named:attack",
    "quadratic": "fedzo.problems.quadratic:Quadratic",
    "tuning": "fedzo.problems.tuning.softmax:tuning",
    "text": "fedzo.problems.text:text",
}
