r"""FedProx: Li et al. 2020."""

from dataclasses import dataclass

from fedzo.algorithms.fedavg import FedAvg
from fedzo.core.estimator import Correction
from fedzo.core.tasks import LocalSteps
from fedzo.errors import check_not_negative


@dataclass(frozen=True, kw_only=True)
class FedProx(FedAvg):
    r"""FedAvg whose local steps are pulled back to the model of the round.

    A device takes H gradient steps on :math:`F_i(x) + \frac{\lambda}{2} \|x - x^t\|^2`, eq. (2) of
    the reference, where λ is called μ,

    .. math:: x_i^{(t,k+1)} = x_i^{(t,k)} - \eta \Bigl( \frac{1}{b_1} \sum_{m=1}^{b_1}
              \nabla F_i\bigl(x_i^{(t,k)}, \xi_m\bigr) + \lambda (x_i^{(t,k)} - x^t) \Bigr),

    so that devices with different data stay closer together. λ = 0 is FedAvg.

    Parameters
    ----------
    proximal : float
        λ, the strength of the pull.
    learning_rate, batch_size, local_steps, participants, weighting, server
        See :class:`~fedzo.FedAvg`.

    References
    ----------
    T. Li, A. K. Sahu, M. Zaheer, M. Sanjabi, A. Talwalkar and V. Smith, "Federated Optimization in
    Heterogeneous Networks", MLSys 2020.

    Examples
    --------
    >>> import fedzo
    >>> from fedzo.problems import Quadratic
    >>> problem = Quadratic(dim=5, devices=4, gradient_noise=0.0)
    >>> algorithm = fedzo.FedProx(learning_rate=0.2, proximal=0.5)
    >>> result = fedzo.minimize(problem, algorithm=algorithm, rounds=200)
    >>> bool(result.history[-1]["optimality_gap"] < 1e-9)
    True
    """

    proximal: float = 0.1

    def __post_init__(self) -> None:
        super().__post_init__()
        check_not_negative("proximal", self.proximal)

    def correction(self, task: LocalSteps, device: int) -> Correction:
        """Return the pull back to x^t."""
        start = task.start(device)
        return lambda x: self.proximal * (x - start)
