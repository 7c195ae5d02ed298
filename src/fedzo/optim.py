"""FedZO's steps as an optimizer of torch, for training loops that are written already.

``import fedzo`` does not import this module, which needs torch.
"""

from collections.abc import Callable, Iterable
from typing import Any, ClassVar

import numpy as np

from fedzo.core.estimator import Estimator
from fedzo.core.random import Draws, Stream
from fedzo.core.types import Array
from fedzo.core.updates import DirectionSum, Offset, scales
from fedzo.core.updates_torch import add_to
from fedzo.errors import MissingExtra, NonFinite, UsageError, first_line, require
from fedzo.problems.network_inputs import check_parameters

try:
    import torch
except ImportError:
    raise MissingExtra("fedzo.optim needs torch", "torch") from None

__all__ = ["ZO", "ZOTrainerMixin"]

Tensor = Any
Closure = Callable[[], Any]
# What all groups share, because the loss is evaluated at one point for all parameters.
SHARED = ("smoothing", "directions", "difference", "direction_kind", "seed", "step")


def __dir__() -> list[str]:
    return __all__


class ZO(torch.optim.Optimizer):  # type: ignore[misc]
    r"""Steps along estimated gradients, from the values of a closure.

    A step draws b2 directions v of the size of all parameters, and evaluates the closure twice for
    each, at x + μ v and x - μ v. With :math:`E[v v^T] = I/d` the estimate, eq. (2) of the paper, is

    .. math:: g = \frac{d}{b_2} \sum_n \frac{F(x + \mu v_n) - F(x - \mu v_n)}{2 \mu} v_n.

    The parameters then take a step of :class:`torch.optim.SGD` with g, or of
    :class:`torch.optim.AdamW` if ``betas`` are given. Directions are functions of the seed and the
    number of the step, so none is stored. Beside the moments a step holds one copy of the
    parameters. If the closure raises, the parameters are what they were, to the bit.

    The closure computes the loss of a batch, the same in each call, and does not call
    ``backward``. It runs without gradients. All calls of a step draw the same random numbers from
    torch, so dropout has the same mask. Batch norm in training mode would change its statistics in
    each call: put it into evaluation mode. Parameters that do not require a gradient stay as they
    are. In half precision, steps smaller than the precision are lost.

    Parameters
    ----------
    params : iterable
        Parameters, named parameters or groups, as for all optimizers of torch. ``lr``,
        ``momentum``, ``weight_decay``, ``betas`` and ``eps`` may differ between groups.
    lr : float
        η, the learning rate. Schedulers of ``torch.optim.lr_scheduler`` change it.
    smoothing : float, optional
        μ, the length of the perturbation. By default :math:`0.001 \sqrt d`: each number moves by
        about 0.001.
    directions : int
        b2, directions per step.
    difference : str
        ``central``, 2 b2 calls of the closure; or ``forward``, b2 + 1 calls.
    direction_kind : str
        ``rademacher`` (±1), ``gaussian`` or ``sphere``.
    momentum, weight_decay : float
        As in SGD.
    betas : pair of float, optional
        Take steps of AdamW with these β, and ``eps``.
    eps : float
        ε of AdamW.
    seed : int
        The seed of the directions.

    Examples
    --------
    >>> import torch
    >>> from fedzo.optim import ZO
    >>> _ = torch.manual_seed(0)
    >>> inputs = torch.randn(100, 3)
    >>> targets = inputs @ torch.tensor([[1.0], [-2.0], [0.5]])
    >>> module = torch.nn.Linear(3, 1)
    >>> optimizer = ZO(module.parameters(), lr=0.02)
    >>> scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.995)
    >>> for step in range(400):
    ...     loss = optimizer.step(lambda: (module(inputs) - targets).square().mean())
    ...     scheduler.step()
    >>> [round(weight, 1) for weight in module.weight[0].tolist()]
    [1.0, -2.0, 0.5]
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-3,
        smoothing: float | None = None,
        *,
        directions: int = 1,
        difference: str = "central",
        direction_kind: str = "rademacher",
        momentum: float = 0.0,
        weight_decay: float = 0.0,
        betas: tuple[float, float] | None = None,
        eps: float = 1e-8,
        seed: int = 0,
    ) -> None:
        defaults: dict[str, Any] = {"lr": lr, "weight_decay": weight_decay}
        if betas is None:
            defaults["momentum"] = momentum
        else:
            require(momentum == 0, "momentum", momentum, "0 with betas")
            defaults |= {"betas": tuple(betas), "eps": eps}
        values = (smoothing, directions, difference, direction_kind, seed, 0)
        super().__init__(params, defaults | dict(zip(SHARED, values, strict=True)))

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group of parameters."""
        first = self.param_groups[0] if self.param_groups else param_group
        for key in SHARED:
            same = param_group.setdefault(key, first.get(key, self.defaults[key]))
            allowed = "the same for all groups: the loss is evaluated at one point"
            require(same == first.get(key, same), key, same, allowed)
        super().add_param_group(param_group)
        tensors = [one for group in self.param_groups for one in group["params"]]
        named = [(f"params[{number}]", tensor) for number, tensor in enumerate(tensors)]
        check_parameters([one for one in named if one[1].requires_grad], tensors)
        group = self.param_groups[-1]
        for key, most in (("lr", np.inf), ("weight_decay", np.inf), ("momentum", 1.0)):
            right = 0 <= float(group.get(key, 0)) < most
            require(right, key, group.get(key), f"a number in [0, {most})")
        self._estimator(1)  # checks the rest

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def step(self, closure: Closure | None = None) -> Any:
        """Take a step; return the mean of the closure's values, or its value at x if forward."""
        if closure is None:
            message = "step() needs a closure that returns the loss: optimizer.step(closure)"
            raise UsageError(message, code="no-closure")
        pieces = [(p, group) for group in self.param_groups for p in group["params"]]
        pieces = [(tensor, group) for tensor, group in pieces if tensor.requires_grad]
        ends = np.cumsum([0, *(tensor.numel() for tensor, _ in pieces)]).tolist()
        dim, shared = ends[-1], self.param_groups[0]
        require(dim > 0, "params", "none", "parameters, some of which require a gradient")
        kind, estimator = shared["direction_kind"], self._estimator(dim)
        at = Draws(shared["seed"], Stream.DIRECTIONS, shared["step"])
        lengths = scales(kind, shared["directions"], dim, at)
        offsets = estimator.offsets(at, lengths, dim, np.float32)
        before = [tensor.clone(memory_format=torch.contiguous_format) for tensor, _ in pieces]
        others = {tensor.device for tensor, _ in pieces if tensor.device.type != "cpu"}
        rng = {"devices": others, "device_type": next((one.type for one in others), "cuda")}

        def move(offset: Offset = None) -> None:
            for (tensor, _), base, start in zip(pieces, before, ends, strict=False):
                new = torch.empty_like(base)
                add_to(offset, new, start, base)
                tensor.copy_(new)

        try:
            values: list[Any] = []
            for offset in offsets:
                move(offset)
                # All calls draw the same numbers; only the last moves torch's generators on.
                with torch.random.fork_rng(**rng, enabled=len(values) + 1 < len(offsets)):
                    values.append(closure())
            slopes = self._slopes(estimator, dim, values, lengths)
            move()
            estimate = DirectionSum.of(kind, dim, [at], slopes[None].astype(np.float32))
            for (tensor, group), start in zip(pieces, ends, strict=False):
                gradient = torch.zeros(tensor.shape, dtype=_wide(tensor), device=tensor.device)
                add_to(estimate, gradient, start)
                self._descend(tensor, gradient, group)
        except BaseException:
            move()
            raise
        for group in self.param_groups:
            group["step"] += 1
        return values[0] if shared["difference"] == "forward" else sum(values) / len(values)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a state; the next step is then the one that the saved optimizer would take."""
        super().load_state_dict(state_dict)
        for number, group in enumerate(self.param_groups):
            for tensor, key in zip(
                group["params"], state_dict["param_groups"][number]["params"], strict=True
            ):
                for name, value in state_dict["state"].get(key, {}).items():  # torch casts them
                    self.state[tensor][name] = value.to(self.state[tensor][name].device, copy=True)

    def _estimator(self, dim: int) -> Estimator:
        shared = self.param_groups[0]
        smoothing = 1e-3 * dim**0.5 if shared["smoothing"] is None else shared["smoothing"]
        return Estimator(
            smoothing=smoothing,
            directions=shared["directions"],
            kind=shared["direction_kind"],
            difference=shared["difference"],
        )

    def _slopes(self, estimator: Estimator, dim: int, values: list[Any], lengths: Array) -> Array:
        """Return the coefficient of each row of directions in the estimate."""
        try:
            numbers = np.array([[float(value)] for value in values])
        except (TypeError, ValueError, RuntimeError) as error:
            found = first_line(error)
            message = f"the closure must return one number, the loss of a batch: {found}"
            raise UsageError(message, code="loss-shape") from error
        slopes = estimator.slopes(numbers, lengths, dim)
        if not np.isfinite(slopes).all():
            raise NonFinite("the loss", self.param_groups[0]["step"] + 1)
        return slopes

    def _descend(self, tensor: Tensor, gradient: Tensor, group: dict[str, Any]) -> None:
        """Take a step of SGD, or of AdamW if the group has betas."""
        lr, state = float(group["lr"]), self.state[tensor]
        x = tensor.to(gradient.dtype)
        if "betas" in group:
            beta1, beta2 = group["betas"]
            if not state:
                state["step"] = torch.zeros(())
                state["exp_avg"], state["exp_avg_sq"] = (torch.zeros_like(gradient) for _ in "mv")
            state["step"] += 1
            m, v, t = state["exp_avg"], state["exp_avg_sq"], float(state["step"])
            m.lerp_(gradient, 1 - beta1)
            v.mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
            root = (v / (1 - beta2**t)).sqrt_().add_(group["eps"])
            x = x * (1 - lr * group["weight_decay"]) - lr * m / (1 - beta1**t) / root
        else:
            gradient = gradient.add(x, alpha=group["weight_decay"])
            if group["momentum"]:
                if "momentum_buffer" not in state:
                    state["momentum_buffer"] = torch.zeros_like(gradient)
                gradient = state["momentum_buffer"].mul_(group["momentum"]).add_(gradient)
            x = x - lr * gradient
        tensor.copy_(x)


def _wide(tensor: Tensor) -> Any:
    return torch.float64 if tensor.dtype == torch.float64 else torch.float32


class ZOTrainerMixin:
    """Let the Trainer of Hugging Face train from losses alone.

    Put it before ``Trainer`` in the bases of a class. The Trainer's learning rate, schedule, weight
    decay, gradient accumulation and checkpoints work as before. A step takes 2 b2 forward passes
    and no backward pass. Gradient clipping has no effect.

    Attributes
    ----------
    zo_options : dict
        Options of :class:`ZO` besides ``lr`` and ``weight_decay``.

    Examples
    --------
    >>> from transformers import Trainer
    >>> class ZOTrainer(ZOTrainerMixin, Trainer):
    ...     zo_options = {"directions": 4, "betas": (0.9, 0.99)}
    """

    zo_options: ClassVar[dict[str, Any]] = {}
    _collected: list[tuple[Any, ...]]

    def create_optimizer(self, *args: Any, **kwargs: Any) -> Any:
        """Return a :class:`ZO` with the parameter groups of the Trainer."""
        trainer, parent, self._collected = _any(self), _any(super()), []
        keys = ("params", "lr", "weight_decay")
        groups = [
            {key: group[key] for key in keys}
            for group in parent.create_optimizer(*args, **kwargs).param_groups
            if group["params"]
        ]
        trainer.optimizer = _StepsByTrainer(groups, **self.zo_options)
        return trainer.optimizer

    def training_step(self, model: Any, inputs: Any, *args: Any, **kwargs: Any) -> Tensor:
        """Take a step once all batches of it are there; return its loss."""
        trainer, parent, batches = _any(self), _any(super()), self._collected
        batches.append((inputs, args, kwargs))
        if not trainer.accelerator.sync_gradients:
            return torch.zeros((), device=trainer.args.device)

        def closure() -> Tensor:
            return sum(
                parent.training_step(model, dict(inputs), *args, **kwargs)
                for inputs, args, kwargs in batches
            )

        optimizer = trainer.optimizer
        trainer.accelerator.backward = lambda *_, **__: None
        try:
            return ZO.step(getattr(optimizer, "optimizer", optimizer), closure)
        finally:
            del trainer.accelerator.backward
            batches.clear()


def _any(one: Any) -> Any:
    return one


class _StepsByTrainer(ZO):
    """Takes no step when the Trainer asks for one: ``training_step`` has taken it."""

    def step(self, closure: Closure | None = None) -> Any:
        """Do nothing."""
