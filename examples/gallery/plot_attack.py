"""
# One perturbation that fools a classifier

**For testers.** Five devices hold images of one class. From the scores of the model alone they find one change that makes it err
on images that nobody had.
"""

import matplotlib.pyplot as plt
import numpy as np
from sklearn.linear_model import LogisticRegression

import fedzo
from fedzo import data

clothes = data.load("fashion-mnist-mini")
inputs, labels = clothes.train_inputs / 255, clothes.train_labels
model = LogisticRegression(tol=0.01, max_iter=1000).fit(inputs, labels)
bag = clothes.classes.index("Bag")
bags = inputs[(labels == bag) & (model.predict(inputs) == bag)].reshape(-1, 28, 28)
seen, unseen = bags[:200], bags[200:]


def scores(images):
    return model.predict_proba(images.reshape(len(images), -1))


victim = fedzo.models.FunctionModel(scores, outputs="probabilities", max_queries=12_000)

attack = fedzo.UniversalAttack(victim, eps=0.15)
attack.fit(np.array_split(seen, 5), labels=bag, held_out=(unseen, bag))
rate = attack.result.history[-1]["heldout_success"]
print(f"{rate:.0%} of {len(unseen)} unseen bags fool the model, after {attack.queries:,} queries")

# %%
noise = attack.noise.reshape(28, 28)
pictures = {"a bag": unseen[0], "the change": noise, "the sum": np.clip(unseen[0] + noise, 0, 1)}
figure, panels = plt.subplots(1, 3, figsize=(8, 3), layout="constrained")
for axes, (title, picture) in zip(panels, pictures.items()):
    span = (-0.15, 0.15) if title == "the change" else (0, 1)
    image = axes.imshow(picture, cmap="PuOr" if span[0] else "gray", vmin=span[0], vmax=span[1])
    axes.set(title=title, xticks=[], yticks=[])
    figure.colorbar(image, ax=axes, shrink=0.7, label="share of the range")
