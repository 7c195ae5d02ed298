"""The model, the data, and training as it is done by gradients."""

import torch
import torch.nn.functional as F  # noqa: N812 - as everybody calls it
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, random_split

from fedzo.data import load


class Net(nn.Module):
    """A small convolutional network for images of 28 x 28."""

    def __init__(self):
        super().__init__()
        self.first = nn.Conv2d(1, 4, 5, stride=2)
        self.second = nn.Conv2d(4, 8, 5, stride=2)
        self.head = nn.Linear(8 * 4 * 4, 10)

    def forward(self, images):
        hidden = F.relu(self.second(F.relu(self.first(images))))
        return self.head(hidden.flatten(1))


def load_data(partition_id, num_partitions, batch_size):
    """Return a node's part of the data, to train with and to evaluate on."""
    data = load("fashion-mnist-mini")
    images = torch.from_numpy(data.train_inputs).float().view(-1, 1, 28, 28) / 255
    labels = torch.from_numpy(data.train_labels)
    own = TensorDataset(images[partition_id::num_partitions], labels[partition_id::num_partitions])
    train, test = random_split(own, [0.8, 0.2], torch.Generator().manual_seed(42))
    return DataLoader(train, batch_size, shuffle=True), DataLoader(test, batch_size)


def train(net, loader, epochs, lr):
    """Train by gradients; return the mean loss."""
    optimiser = torch.optim.SGD(net.parameters(), lr=lr, momentum=0.9)
    net.train()
    losses = []
    for _ in range(epochs):
        for images, labels in loader:
            optimiser.zero_grad()
            loss = F.cross_entropy(net(images), labels)
            loss.backward()
            optimiser.step()
            losses.append(loss.item())
    return sum(losses) / len(losses)


def test(net, loader):
    """Return the mean loss and the accuracy."""
    net.eval()
    loss = correct = 0.0
    with torch.no_grad():
        for images, labels in loader:
            scores = net(images)
            loss += F.cross_entropy(scores, labels, reduction="sum").item()
            correct += (scores.argmax(1) == labels).sum().item()
    return loss / len(loader.dataset), correct / len(loader.dataset)
