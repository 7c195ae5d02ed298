"""One perturbation against a scikit-learn classifier, sought by five devices together."""

import numpy as np
from sklearn.linear_model import LogisticRegression

import fedzo
from fedzo import data

clothes = data.load("fashion-mnist-mini")
inputs, labels = clothes.train_inputs / 255, clothes.train_labels
model = LogisticRegression(max_iter=1000).fit(inputs, labels)

bag = clothes.classes.index("Bag")
bags = inputs[(labels == bag) & (model.predict(inputs) == bag)]
devices = np.array_split(bags[:200], 5)

attack = fedzo.UniversalAttack(model, c=0.2, rounds=5).fit(devices, labels=bag)

print(f"success on the devices' own bags   {attack.success_rate(bags[:200], bag):.0%}")
print(f"success on bags that nobody had    {attack.success_rate(bags[200:], bag):.0%}")
print(f"mean L2 distortion of an image     {attack.distortion.l2_mean:.2f}")
print(f"answers asked of the model         {attack.queries:,}")
attack.save("bag.npz")
