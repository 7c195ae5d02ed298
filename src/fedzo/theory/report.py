"""Apply the theory to one run: the tables that ``fedzo theory`` prints."""

import math
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from fedzo.algorithms import Algorithm, FedZO
from fedzo.algorithms.server import Mean
from fedzo.core.engine import ReplayEngine
from fedzo.core.progress import aligned
from fedzo.errors import UsageError, require
from fedzo.theory import advice
from fedzo.theory.advice import Steps
from fedzo.theory.bounds import Bound, Constants, Limit, Setting, bound, limit
from fedzo.theory.estimate import Estimate
from fedzo.theory.privacy import channel_privacy
from fedzo.uplinks import AirComp, AirCompSeeds, Ideal, Seeds, Uplink
from fedzo.uplinks.base import RunSetting

Rows = list[tuple[str, ...]]

_PARTICIPANTS = {1: "all devices", 2: "some of the devices", 3: "over the air"}
_PERFECT = (
    "csi_error", "phase_error", "misalignment", "antennas", "combining", "power", "clip",
    "downlink_snr_db",
)  # fmt: skip
_COVERED = ("sphere", "orthogonal")  # both have the moments that the proofs use, or smaller


@dataclass(frozen=True)
class Report:
    """The limit and bound of theorem 1, 2 or 3 for a run, and better choices of η, μ and H.

    ``limit`` and ``bound`` are the corrected ones; the paper's are too optimistic when b1 > 1 or
    b2 > 1. ``advised`` is the η of the least bound with the corollary's μ, and ``best`` the same
    run with the H of the least bound.
    """

    setting: Setting
    steps: Steps
    constants: Constants
    warnings: tuple[str, ...]
    outside: tuple[str, ...] = ()
    privacy: Rows = field(default_factory=list)
    measured: Estimate | None = None

    @property
    def limit(self) -> Limit:
        """The condition on η."""
        return limit(self.constants, self.setting)

    @property
    def bound(self) -> Bound:
        """The bound at the run's η and μ."""
        return bound(self.constants, self.setting, *self.steps)

    @property
    def allowed(self) -> bool:
        """Whether the run's η is within the limit. The bound holds only then."""
        return not self.outside and self.steps.learning_rate <= self.limit.value

    @property
    def advised(self) -> Steps:
        """The best η and μ for the run's H."""
        return advice.best_steps(self.constants, self.setting)

    @property
    def best(self) -> Setting:
        """The same run with the H, up to 1000, of the least bound."""
        return advice.best_local_steps(self.constants, self.setting)

    def sections(self) -> list[tuple[str, Rows]]:
        """Return the titles and rows of the report."""
        cost = f", measured with {self.measured.queries:,} queries" if self.measured else ""
        why = "it does not apply" if self.outside else "η is above the limit"
        only = "" if self.allowed else f" (no bound: {why})"
        sections = [
            (f"constants{cost}", self._constants()),
            ("learning rate η at most", self._limits()),
            (f"bound on min E|∇f|² at your η and μ{only}", self._bounds()),
            ("choices", self._choices()),
            ("local steps H", self._local_steps()),
            ("rates, Table I (orders: only their ratios mean something)", self._rates()),
        ]
        if self.privacy:
            sections.append(("privacy by the noise of the channel", self.privacy))
        warnings: Rows = [(text,) for text in self.warnings]
        return [*sections, ("warnings", warnings)] if warnings else sections

    def text(self) -> str:
        """Return the report as plain text, in columns."""
        s = self.setting
        sizes = {"N": s.devices, "M" if s.snr is None else "M̃": s.meeting, "H": s.local_steps}
        sizes |= {"T": s.rounds, "b1": s.batch_size, "b2": s.directions, "d": s.dim}
        named = "  ".join(f"{key} = {value}" for key, value in sizes.items())
        noise = "" if s.snr is None else f"  γ = {_number(s.snr)}"
        lines = [f"theorem {s.theorem}, {_PARTICIPANTS[s.theorem]}: {named}{noise}"]
        if self.outside:
            lines.append(f"theorem {s.theorem} does not apply: {', '.join(self.outside)}")
        for title, rows in self.sections():
            lines += ["", title, *_columns(rows)]
        return "\n".join(lines)

    def _constants(self) -> Rows:
        found, known = self.measured, vars(self.constants).items()
        if found is None:
            return [(key, _number(value)) for key, value in known]
        return [
            (key, _number(value), f"± {found.errors[key]:.2g}", found.notes[key])
            for key, value in known
        ]

    def _limits(self) -> Rows:
        here, paper = self.limit, limit(self.constants, self.setting, printed=True)
        rows = _compared(here, paper)
        place = here.terms.index(here.binding) + 1
        rows[place] += ("<- binds",)
        rows.append(("limit", "the least", *_numbers(here.value, paper.value)))
        if self.measured:  # every limit falls, and every bound grows, in each constant
            raised = {k: v + self.measured.errors[k] for k, v in vars(self.constants).items()}
            worst = (limit(Constants(**raised), self.setting, p).value for p in (False, True))
            rows.append(("", "with every constant at its +", *_numbers(*worst)))
        return [*rows, ("yours", "", _number(self.steps.learning_rate))]

    def _bounds(self) -> Rows:
        here = self.bound
        paper = bound(self.constants, self.setting, *self.steps, printed=True)
        return [*_compared(here, paper), ("sum", "", *_numbers(here.value, paper.value))]

    def _choices(self) -> Rows:
        s, best = self.setting, self.best
        rows: Rows = [("", "H", "η", "μ", "bound")]
        for name, setting, steps in (
            ("yours", s, self.steps),
            (f"corollary {s.theorem}", s, advice.corollary(s)),
            ("least bound", s, self.advised),
            ("least, any H", best, advice.best_steps(self.constants, best)),
        ):
            holds = steps.learning_rate <= limit(self.constants, setting).value
            value = _number(bound(self.constants, setting, *steps).value) if holds else "none"
            rows.append((name, f"{setting.local_steps}", *_numbers(*steps), value))
        return rows

    def _local_steps(self) -> Rows:
        allowed = advice.largest_local_steps(self.constants, self.setting)
        least, most, binding = allowed
        if allowed.possible:
            found = f"H from {least} to {most}; limited by: {binding}"
        else:
            found = f"none: variance needs H >= {_number(least)}, {binding} needs H <= {most}"
        orders = advice.orders_of_local_steps(self.setting)
        order = min(orders, key=lambda name: orders[name])
        scale = f"{_number(orders[order])} ({order}), a scale: the paper gives no constants"
        return [("corollary's η allows", found), ("the paper's order", scale)]

    def _rates(self) -> Rows:
        rows: Rows = []
        for row in advice.table_one(self.setting):
            known = not math.isnan(row.most)
            most = f"H up to {row.local_steps} = {_number(row.most)}" if known else ""
            rows.append((row.algorithm, row.formula, _number(row.value), most))
        return rows


def report(
    algorithm: Algorithm,
    constants: Constants | Estimate,
    *,
    devices: int,
    dim: int,
    rounds: int,
    uplink: Uplink | None = None,
    seed: int = 0,
) -> Report:
    """Return the guarantees of the theory for a run, with warnings where it is outside of them.

    Over the air the channel selects the participants, and the channel depends on the seed. So the
    report counts the participants of this run and uses the smallest round.

    Examples
    --------
    >>> import fedzo
    >>> constants = Constants(L=1.0, gap=50.0, sigma_g=1.0, sigma_h=1.0)
    >>> algorithm = fedzo.FedZO(learning_rate=0.01, batch_size=5, directions=10, participants=10)
    >>> found = report(algorithm, constants, devices=20, dim=100, rounds=200)
    >>> print(found.warnings[0])
    learning_rate = 0.01 is above theorem 2's limit 0.004735: variance, M / (192 c̃g c̃h L), \
is 0.004735; drift, 2 / (M H² L), is 0.008; sampled drift, 1 / (3 √(M H³) L), is 0.009428
    >>> found.setting.theorem, round(found.advised.learning_rate, 6)
    (2, 0.004735)
    """
    if not isinstance(algorithm, FedZO):
        name = type(algorithm).__name__
        raise UsageError(f"the theorems are about fedzo, not {name}", code="not-fedzo")
    if algorithm.automatic:
        words = "learning_rate or smoothing is 'auto': give numbers to apply the theorems"
        raise UsageError(words, code="auto-without-run")
    require(rounds >= 1, "rounds", rounds, "a whole number >= 1")
    setting, warnings = _setting(algorithm, devices, dim, rounds, uplink, seed)
    steps = Steps(float(algorithm.learning_rate), float(algorithm.smoothing))
    measured = constants if isinstance(constants, Estimate) else None
    known = constants.constants if isinstance(constants, Estimate) else constants
    return Report(
        setting,
        steps,
        known,
        warnings=(*_above(known, setting, steps), *warnings),
        outside=_outside(algorithm, uplink),
        privacy=_privacy(uplink, setting),
        measured=measured,
    )


def _setting(
    algorithm: FedZO, devices: int, dim: int, rounds: int, uplink: Uplink | None, seed: int
) -> tuple[Setting, list[str]]:
    """Return the sizes of a run, and warnings about them."""
    sizes: dict[str, Any] = {
        "local_steps": algorithm.local_steps,
        "batch_size": algorithm.batch_size,
        "directions": algorithm.directions,
        "shared": algorithm.shared_directions,
    }
    if not isinstance(uplink, AirComp):
        return Setting(devices, dim, rounds, algorithm.participants, **sizes), []
    engine = ReplayEngine(seed, dim, devices)
    run = RunSetting(engine, uplink, algorithm.coefficients_shape)
    counts = [len(uplink.participants(t, None, run)) for t in range(rounds)]
    counts = [count for count in counts if count > 0]
    if not counts:
        words = f"no channel reaches h_min = {uplink.h_min} in any of {rounds} rounds"
        raise UsageError(words, code="no-participants")
    empty = rounds - len(counts)
    warnings = [f"no device takes part in {empty} rounds: T counts the others"] if empty else []
    snr = 10 ** (uplink.mean_snr_db / 10) * uplink.h_min**2  # γ = P h_min² / σ_w²
    own = isinstance(uplink, AirCompSeeds)
    setting = Setting(devices, dim, len(counts), min(counts), **sizes, snr=snr, coefficients=own)
    if setting.noise_excess > 1:
        warnings.append(
            "corollary 3 needs 8 M̃ γ >= N H: "
            f"{_number(8 * setting.meeting * setting.noise_snr)} is below "
            f"{devices * algorithm.local_steps}"
        )
    return setting, warnings


def _above(constants: Constants, setting: Setting, steps: Steps) -> list[str]:
    """Return a warning if η is above the limit."""
    found, eta = limit(constants, setting), steps.learning_rate
    terms = [f"{t.name}, {t.formula}, is {_number(t.value)}" for t in found.broken(eta)]
    above = f"above theorem {setting.theorem}'s limit {_number(found.value)}"
    return [f"learning_rate = {_number(eta)} is {above}: {'; '.join(terms)}"] if terms else []


def _outside(algorithm: FedZO, uplink: Uplink | None) -> tuple[str, ...]:
    """Return the settings that the theorems do not cover."""
    settings: list[tuple[str, Any, bool]] = [
        ("direction_kind", algorithm.direction_kind, algorithm.direction_kind in _COVERED),
        ("weighting", algorithm.weighting, algorithm.weighting == "uniform"),
        ("difference", algorithm.difference, algorithm.difference == "forward"),
        ("server", type(algorithm.server).__name__, isinstance(algorithm.server, Mean)),
        ("fixed_directions", algorithm.fixed_directions, algorithm.fixed_directions is None),
    ]
    if isinstance(uplink, AirComp):
        usual = type(uplink)()
        own = vars(uplink)
        settings += [(key, own[key], own[key] == vars(usual)[key]) for key in _PERFECT]
    elif uplink is not None:
        settings.append(("uplink", type(uplink).__name__, isinstance(uplink, Ideal | Seeds)))
    return tuple(f"{key} = {value!r}" for key, value, inside in settings if not inside)


def _privacy(uplink: Uplink | None, setting: Setting) -> Rows:
    """Return the privacy that the channel's noise gives, if amplitudes are set by a clip."""
    if not isinstance(uplink, AirComp) or uplink.clip is None:
        return []
    numbers = setting.dim
    if setting.coefficients:
        numbers = setting.local_steps * setting.directions
    try:
        found = channel_privacy(uplink, numbers, setting.rounds)
    except UsageError as error:  # not known for this uplink, or an extra is missing
        return [(str(error),)]
    return [
        ("noise over the clip, per round", _number(found.noise)),
        (f"ε of a device's update in {setting.rounds} rounds", _number(found.device)),
        ("ε of a record", _number(found.record), f"at δ = {found.delta:g}"),
    ]


def _compared(here: Limit | Bound, paper: Limit | Bound) -> Rows:
    """Return a row per term with the corrected and the printed value."""
    pairs = zip(here.terms, paper.terms, strict=True)
    rows = [(one.name, one.formula, *_numbers(one.value, other.value)) for one, other in pairs]
    return [("", "", "holds", "printed"), *rows]


def _numbers(*values: float) -> tuple[str, ...]:
    return tuple(map(_number, values))


def _number(value: float) -> str:
    return f"{value:.4g}"


def _columns(rows: Sequence[Sequence[str]]) -> list[str]:
    """Return rows as lines of aligned columns; rows of a single cell are wrapped."""
    if any(len(row) == 1 for row in rows):
        wrapper = textwrap.TextWrapper(100, initial_indent="  ", subsequent_indent="    ")
        return [wrapper.fill(row[0]) for row in rows]
    return ["  " + line for line in aligned(rows)]
