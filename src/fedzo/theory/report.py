"""What the theory says of one run: the table that ``fedzo theory`` prints."""

from __future__ import annotations

import math
import textwrap
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from fedzo.algorithms import Algorithm, FedZO
from fedzo.core.engine import ReplayEngine
from fedzo.errors import UsageError, require
from fedzo.theory.advice import (
    LocalSteps,
    Steps,
    best_local_steps,
    best_steps,
    corollary,
    largest_local_steps,
    orders_of_local_steps,
)
from fedzo.theory.bounds import Bound, Constants, Limit, Setting, bound, limit
from fedzo.theory.estimate import Estimate
from fedzo.theory.table import table_one
from fedzo.uplinks import AirComp, Uplink
from fedzo.uplinks.base import RunSetting

_WHO = {1: "all devices", 2: "some of the devices", 3: "over the air"}
_COVERED = ("sphere", "orthogonal")  # both have the moments that the proofs use, or smaller


class Section(NamedTuple):
    """A part of the report: a title and rows of words."""

    title: str
    rows: Sequence[Sequence[str]]


@dataclass(frozen=True)
class Report:
    """What theorem 1, 2 or 3 says of a run, and what it would choose.

    ``limit`` and ``bound`` are those that hold; ``printed_limit`` and ``printed_bound`` are
    the paper's, too optimistic when b1 > 1 or b2 > 1. ``advised`` is the η of the least bound
    with the corollary's μ, and ``best`` the same run with the H whose bound is least.
    """

    setting: Setting
    steps: Steps
    constants: Constants
    warnings: tuple[str, ...]
    errors: Mapping[str, float] = field(default_factory=dict)
    notes: Mapping[str, str] = field(default_factory=dict)
    queries: int = 0

    @property
    def limit(self) -> Limit:
        """The condition on η."""
        return limit(self.constants, self.setting)

    @property
    def printed_limit(self) -> Limit:
        """The condition on η, as the paper has it."""
        return limit(self.constants, self.setting, printed=True)

    @property
    def bound(self) -> Bound:
        """The bound at the run's own η and μ."""
        return bound(self.constants, self.setting, *self.steps)

    @property
    def printed_bound(self) -> Bound:
        """The bound at the run's own η and μ, as the paper has it."""
        return bound(self.constants, self.setting, *self.steps, printed=True)

    @property
    def allowed(self) -> bool:
        """Whether the run's η is within the limit: only then the bound is one."""
        return self.steps.learning_rate <= self.limit.value

    @property
    def advised(self) -> Steps:
        """η and μ for the run's own H."""
        return best_steps(self.constants, self.setting)

    @property
    def best(self) -> Setting:
        """The same run with the H, up to 1000, whose bound is least."""
        return best_local_steps(self.constants, self.setting)

    @property
    def local_steps(self) -> LocalSteps:
        """Which H the corollary's η allows."""
        return largest_local_steps(self.constants, self.setting)

    def _pessimistic(self) -> Constants:
        """Return the constants one error up: every limit falls and every bound grows in each."""
        return Constants(
            **{k: v + self.errors.get(k, 0.0) for k, v in vars(self.constants).items()}
        )

    def sections(self) -> list[Section]:
        """Return the report as titles and rows."""
        return [
            self._constants(),
            self._limits(),
            self._bounds(),
            self._choices(),
            self._local_steps(),
            self._table(),
            *([Section("warnings", [(text,) for text in self.warnings])] if self.warnings else []),
        ]

    def text(self) -> str:
        """Return the report as plain text, in columns."""
        s = self.setting
        sizes = {"N": s.devices, "M" if s.snr is None else "M̃": s.meeting, "H": s.local_steps}
        sizes |= {"T": s.rounds, "b1": s.batch_size, "b2": s.directions, "d": s.dim}
        named = "  ".join(f"{key} = {value}" for key, value in sizes.items())
        heard = "" if s.snr is None else f"  γ = {_number(s.snr)}"
        lines = [f"theorem {s.theorem}, {_WHO[s.theorem]}: {named}{heard}"]
        for title, rows in self.sections():
            lines += ["", title, *_columns(rows)]
        return "\n".join(lines)

    def _constants(self) -> Section:
        rows = []
        for key, value in vars(self.constants).items():
            error = self.errors.get(key)
            shown = "" if error is None else f"± {error:.2g}"
            rows.append((key, _number(value), shown, self.notes.get(key, "")))
        cost = f", measured with {self.queries:,} queries" if self.queries else ""
        return Section(f"constants{cost}", rows)

    def _limits(self) -> Section:
        here, paper = self.limit, self.printed_limit
        rows = [("", "", "holds", "printed", "")]
        for one, other in zip(here.terms, paper.terms, strict=True):
            binds = "<- binds" if one is here.binding else ""
            rows.append((one.name, one.formula, _number(one.value), _number(other.value), binds))
        rows.append(("limit", "the least", _number(here.value), _number(paper.value), ""))
        if self.errors:
            least, most = (limit(self._pessimistic(), self.setting, p).value for p in (False, True))
            rows.append(("", "with every constant at its +", _number(least), _number(most), ""))
        rows.append(("yours", "", _number(self.steps.learning_rate), "", ""))
        return Section("learning rate η at most", rows)

    def _bounds(self) -> Section:
        rows = [("", "", "holds", "printed")]
        for one, other in zip(self.bound.terms, self.printed_bound.terms, strict=True):
            rows.append((one.name, one.formula, _number(one.value), _number(other.value)))
        rows.append(("sum", "", _number(self.bound.value), _number(self.printed_bound.value)))
        only = "" if self.allowed else " (no bound: η is above the limit)"
        return Section(f"bound on min E|∇f|² at your η and μ{only}", rows)

    def _choices(self) -> Section:
        s, best = self.setting, self.best
        theirs = corollary(s)
        rows = [("", "H", "η", "μ", "bound")]
        for name, setting, steps in (
            ("yours", s, self.steps),
            (f"corollary {s.theorem}", s, theirs),
            ("least bound", s, self.advised),
            ("least, any H", best, best_steps(self.constants, best)),
        ):
            holds = steps.learning_rate <= limit(self.constants, setting).value
            value = bound(self.constants, setting, *steps).value
            row = (_number(steps.learning_rate), _number(steps.smoothing))
            rows.append((name, f"{setting.local_steps}", *row, _number(value) if holds else "none"))
        return Section("choices", rows)

    def _local_steps(self) -> Section:
        range_ = self.local_steps
        least, most, binding = range_
        if range_.possible:
            found = f"H from {least} to {most}; what forbids more: {binding}"
        else:
            found = f"none: variance asks for H >= {_number(least)}, {binding} for H <= {most}"
        orders = orders_of_local_steps(self.setting)
        order = min(orders, key=lambda name: orders[name])
        scale = f"{_number(orders[order])} ({order}), a scale: the paper gives no constants"
        return Section(
            "local steps H", [("corollary's η allows", found), ("the paper's order", scale)]
        )

    def _table(self) -> Section:
        rows = []
        for row in table_one(self.setting):
            most = (
                "" if math.isnan(row.most) else f"H up to {row.local_steps} = {_number(row.most)}"
            )
            rows.append((row.algorithm, row.formula, _number(row.value), most))
        return Section("rates, Table I (orders: only their ratios mean something)", rows)


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
    """Say what the theory promises for a run, and where the run is outside of it.

    Over the air who takes part is up to the channel, and the channel is a function of the
    seed: the smallest round of *this* run is counted, not guessed.

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
        raise UsageError(f"the theorems are about fedzo, not {type(algorithm).__name__}")
    if algorithm.automatic:
        raise UsageError("'auto' is a number that a run chooses: give one to the theorems")
    require(rounds >= 1, "rounds", rounds, "a whole number >= 1")
    setting, warnings = _setting(algorithm, devices, dim, rounds, uplink, seed)
    steps = Steps(float(algorithm.learning_rate), float(algorithm.smoothing))
    measured = constants if isinstance(constants, Estimate) else None
    known = constants if isinstance(constants, Constants) else constants.constants
    return Report(
        setting,
        steps,
        known,
        warnings=(*_broken(known, setting, steps), *warnings, *_outside(algorithm, uplink)),
        errors=measured.errors if measured else {},
        notes=measured.notes if measured else {},
        queries=measured.queries if measured else 0,
    )


def _setting(
    algorithm: FedZO, devices: int, dim: int, rounds: int, uplink: Uplink | None, seed: int
) -> tuple[Setting, list[str]]:
    """Return the sizes, and what is remarkable about them."""
    sizes = {
        "local_steps": algorithm.local_steps,
        "batch_size": algorithm.batch_size,
        "directions": algorithm.directions,
    }
    if not isinstance(uplink, AirComp):
        return Setting(devices, dim, rounds, algorithm.participants, **sizes), []
    who = RunSetting(ReplayEngine(seed, dim, devices), uplink)
    counts = [len(uplink.participants(t, None, who)) for t in range(rounds)]
    heard = [count for count in counts if count > 0]
    if not heard:
        raise UsageError(f"in none of {rounds} rounds a channel reaches h_min = {uplink.h_min}")
    empty = rounds - len(heard)
    warnings = [f"nobody takes part in {empty} rounds: T counts the others"] if empty else []
    snr = 10 ** (uplink.snr_db / 10) * uplink.h_min**2  # γ = P h_min² / σ_w²
    setting = Setting(devices, dim, len(heard), min(heard), **sizes, snr=snr)
    if setting.noise_excess > 1:
        warnings.append(
            f"corollary 3 asks for 8 M̃ γ >= N H: {_number(8 * setting.meeting * snr)} is below "
            f"{devices * algorithm.local_steps}"
        )
    return setting, warnings


def _broken(constants: Constants, setting: Setting, steps: Steps) -> list[str]:
    found, eta = limit(constants, setting), steps.learning_rate
    terms = [f"{t.name}, {t.formula}, is {_number(t.value)}" for t in found.broken(eta)]
    if not terms:
        return []
    above = f"above theorem {setting.theorem}'s limit {_number(found.value)}"
    return [f"learning_rate = {_number(eta)} is {above}: {'; '.join(terms)}"]


def _outside(algorithm: FedZO, uplink: Uplink | None) -> list[str]:
    """Return what the theorems do not speak of."""
    settings: list[tuple[str, Any, bool]] = [
        ("direction_kind", algorithm.direction_kind, algorithm.direction_kind in _COVERED),
        ("weighting", algorithm.weighting, algorithm.weighting == "uniform"),
    ]
    if isinstance(uplink, AirComp):
        settings.append(("csi_error", uplink.csi_error, uplink.csi_error == 0))
    return [
        f"{key} = {value!r} is outside the theorems"
        for key, value, inside in settings
        if not inside
    ]


def _number(value: float) -> str:
    return f"{value:.4g}"


def _columns(rows: Sequence[Sequence[str]]) -> list[str]:
    """Lay rows out in columns as wide as their widest word, but for the last."""
    if any(len(row) == 1 for row in rows):
        return [
            textwrap.fill(row[0], 100, initial_indent="  ", subsequent_indent="    ")
            for row in rows
        ]
    widths = [max(map(_width, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(
            ("", *(w + " " * (n - _width(w)) for w, n in zip(row, widths, strict=True)))
        ).rstrip()
        for row in rows
    ]


def _width(word: str) -> int:
    """Count what takes a column: the tilde over c̃ does not."""
    return sum(not unicodedata.combining(letter) for letter in word)
