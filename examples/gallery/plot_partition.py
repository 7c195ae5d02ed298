"""
# Split labels over devices

**For researchers.** `fedzo.data.partition` splits any labels: by shards, by a Dirichlet distribution, or evenly.
"""

import matplotlib.pyplot as plt
import numpy as np

from fedzo import data

labels = data.load("fashion-mnist-mini").train_labels
kinds = {"iid": {}, "dirichlet": {"concentration": 0.3}, "shards": {"shards_per_device": 2}}

figure, panels = plt.subplots(1, 3, figsize=(9, 3.5), sharey=True, layout="constrained")
for axes, (kind, options) in zip(panels, kinds.items()):
    parts = data.partition(labels, devices=20, kind=kind, seed=0, **options)
    counts = np.stack([np.bincount(labels[part], minlength=10) for part in parts], axis=1)
    image = axes.imshow(counts, cmap="Blues", vmin=0, vmax=200, aspect="auto")
    axes.set(xlabel="device", title=kind)
panels[0].set_ylabel("class")
figure.colorbar(image, ax=panels, label="samples of the class (200 or more: darkest)")
