"""
# Ask and tell: a laboratory in the loop

**For anyone whose values come from outside.** The run asks for values, and continues when it gets them: from an instrument, a
queue or a colleague.
"""

import matplotlib.pyplot as plt
import numpy as np

import fedzo


def experiment(x):
    """Stand in for an instrument: the yield of a reaction, at a temperature and a pressure."""
    return -float(np.exp(-((x[0] - 340) ** 2) / 800 - (x[1] - 2.5) ** 2))


run = fedzo.AskTell([310.0, 1.0], bounds=[(280, 400), (0.5, 5)], max_queries=60)
yields = []
while queries := run.ask():
    answers = [experiment(query.x) for query in queries]
    yields += [-answer for answer in answers]
    run.tell(answers)
print("best temperature and pressure:", run.result().x.round(2))

# %%
figure, axes = plt.subplots(figsize=(6, 3.5), layout="constrained")
axes.plot(yields, "o", color="0.7", markersize=4, label="each experiment")
axes.plot(np.maximum.accumulate(yields), color="#0072B2", label="best so far")
axes.set(xlabel="experiments", ylabel="yield", title="Two settings of a reaction")
axes.legend(loc="lower right")
