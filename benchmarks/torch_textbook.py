"""FedZO's softmax round as a textbook PyTorch loop: one direction, one device at a time."""

import torch
import torch.nn.functional as F  # noqa: N812 - PyTorch's own habit


class Round:
    """Data and settings of the benchmark; calling it does one round."""

    def __init__(self, inputs, labels, parts, participants, lr, mu, b1, b2, local_steps):
        self.inputs = torch.from_numpy(inputs).float().div(255)
        self.labels = torch.from_numpy(labels).long()
        self.parts = [torch.from_numpy(p) for p in parts]
        self.participants, self.lr, self.mu = participants, lr, mu
        self.b1, self.b2, self.local_steps = b1, b2, local_steps
        self.features, self.classes = self.inputs.shape[1], 10
        self.x = torch.zeros((self.features + 1) * self.classes)

    def loss(self, x, inputs, labels):
        weight = x[: self.features * self.classes].view(self.features, self.classes)
        bias = x[self.features * self.classes :]
        return F.cross_entropy(inputs @ weight + bias, labels)

    def estimate(self, x, inputs, labels):
        """Eq. (2): the mean over the batch is taken by the loss."""
        dim = x.numel()
        base = self.loss(x, inputs, labels)
        estimate = torch.zeros(dim)
        for _ in range(self.b2):
            v = torch.randn(dim)
            v /= v.norm()
            estimate += dim / self.mu * (self.loss(x + self.mu * v, inputs, labels) - base) * v
        return estimate / self.b2

    @torch.no_grad()
    def __call__(self):
        chosen = torch.randperm(len(self.parts))[: self.participants]
        updates = []
        for device in chosen.tolist():
            own = self.parts[device]
            x = self.x.clone()
            for _ in range(self.local_steps):
                batch = own[torch.randint(len(own), (self.b1,))]
                x -= self.lr * self.estimate(x, self.inputs[batch], self.labels[batch])
            updates.append(x - self.x)
        self.x += torch.stack(updates).mean(dim=0)
