"""What the words of claims mean in numbers: decided once, before anything is run, for all figures.

The paper gives words ("slightly", "comparable"), never numbers; these are ours.
"""

from __future__ import annotations

COMPARABLE_LOSS = 0.05
COMPARABLE_ACCURACY = 0.02
SAME_ACCURACY = 0.05
SLIGHTLY = 1.25
MUCH = 2.0
CONVERGED = 0.1
EXPONENT = 0.15
RATE = (0.7, 1.4)
SAME_LOSS = 1e-12
OVERHEAD = 0.9
FEWER_USES = 10.0
COINCIDE = 0.02

MEANING = {
    "faster": "fewer rounds (or queries, or channel uses, where it says so) to the same loss, the "
    "higher of the two that both end at",
    "slightly slower": f"slower, and at most {SLIGHTLY} times the rounds",
    "much faster": f"{MUCH:g} times at least",
    "comparable, performs well": f"the last training loss within {COMPARABLE_LOSS:.0%}, and the "
    f"last test accuracy, where there is one, within {100 * COMPARABLE_ACCURACY:g} points",
    "the same accuracy (remark 2)": f"the last training loss within {COMPARABLE_LOSS:.0%}, the "
    f"last test accuracy within {100 * SAME_ACCURACY:g} points",
    "converges": "the loss ends below where it began; in softmax regression by at least "
    f"{CONVERGED:.0%}",
    "linear speed-up": f"the squared gradient falls with the exponent -1/2, within {EXPONENT}",
    "rates of Table I": f"their ratio within a factor of {RATE[0]} to {RATE[1]}",
    "the same losses": f"to {SAME_LOSS:g}, absolutely",
    "d / (H b2) times fewer bytes": f"at least {OVERHEAD:.0%} of it: a message has a head",
    "many times fewer channel uses": f"{FEWER_USES:g} times at least",
    "coincide": f"the rounds to the same loss within {COINCIDE:.0%}",
}
