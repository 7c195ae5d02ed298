"""Numbers of NumPy are numbers, and what has a wrong type is rejected by its key."""

import contextlib
import dataclasses
import decimal
import fractions
import types
import typing
from importlib.util import find_spec

import numpy as np
import pytest

import fedzo
from fedzo.errors import FedzoError, InvalidValue, type_hints
from fedzo.models import FunctionModel
from fedzo.problems import Quadratic
from fedzo.runs.minimize import split_options
from fedzo.runs.options import FlowerSettings, RunOptions
from fedzo.runs.registry import ALGORITHMS, SERVER_OPTIMIZERS, UPLINKS
from fedzo.uplinks.channels import Rician
from raising import rejects

LIMITS = []
if find_spec("flwr") is not None:
    from fedzo.flower.policy import Limits

    LIMITS = [Limits]
PARTS = [*ALGORITHMS.values(), *SERVER_OPTIMIZERS.values(), *UPLINKS.values()]
MADE = {
    **{kind: {} for kind in (*PARTS, RunOptions, FlowerSettings, *LIMITS)},
    fedzo.Float: {"low": 1.0, "high": 2.0},
    fedzo.Int: {"low": 1, "high": 2},
    fedzo.Choice: {"options": ["a", "b"]},
}
PARAMETERS = [
    pytest.param(kind, field.name, id=f"{kind.__name__}.{field.name}")
    for kind in MADE
    for field in dataclasses.fields(kind)
    if field.init
]
# Numbers that most parameters take, as Python has them; each is then given in NumPy's types.
NUMBERS = {
    int: [1, 2, 4, 8],
    float: [0.5, 1.0, 0.25, 4.0],
    bool: [True, False],
    tuple: [(1, 2)],
}
TYPES = {
    int: [*(np.int8, np.int32, np.int64, np.uint8, np.uint64, np.array), np.ma.array],
    float: [np.float16, np.float32, np.float64, np.longdouble, np.array, fractions.Fraction, int],
    bool: [np.bool_, np.array],
    tuple: [list, np.array, lambda v: [np.int32(one) for one in v]],
}
ODD = (
    *(object(), "3", b"3", "", "é\n", 3j, np.complex64(3), np.array([1, "a"], object), {}, set()),
    *(np.ma.masked, np.datetime64("2026-01-01"), decimal.Decimal(3), [[1], [2, 3]], (), print, int),
    *(np.array([1.0, 2.0]), np.array(["3"]), range(2), float("nan"), 10**400, -1, None, True, 2.5),
    *(np.str_("3"), np.timedelta64(3), slice(2), Ellipsis, Exception("x"), iter([1])),
)


@contextlib.contextmanager
def suppress_if_named(key):
    """Let an error of fedzo's pass that names this key, and no other."""
    try:
        yield
    except FedzoError as error:
        if key not in str(error):
            raise AssertionError(f"{key} is not named: {error}") from error


def options_of(kind, name):
    hint = type_hints(kind).get(name, typing.Any)
    union = typing.get_origin(hint) in (typing.Union, types.UnionType)
    return {typing.get_origin(one) or one for one in (typing.get_args(hint) if union else [hint])}


@pytest.mark.parametrize(("kind", "name"), PARAMETERS)
def test_numbers_of_numpy_are_those_of_python(kind, name):
    """To the type, so that nothing is compiled again for them, and all files are the same."""
    tried = 0
    for plain in options_of(kind, name) & NUMBERS.keys():
        for value in NUMBERS[plain]:
            try:
                wanted = kind(**MADE[kind] | {name: value})
            except InvalidValue:
                continue  # no such number here
            for convert in TYPES[plain]:
                if convert is int and value != int(value):
                    continue
                given = kind(**MADE[kind] | {name: convert(value)})
                assert given == wanted
                assert type(getattr(given, name)) is type(getattr(wanted, name))
                tried += 1
    # Some need another setting: they are tested below.
    alone = name not in ("fixed_directions", "joules")
    assert tried or not alone or not options_of(kind, name) & {int, float, bool}


@pytest.mark.parametrize(("kind", "name"), PARAMETERS)
def test_what_has_a_wrong_type_is_rejected_by_its_key(kind, name):
    for odd in ODD:
        with suppress_if_named(name):
            kind(**MADE[kind] | {name: odd})


PROBLEM = Quadratic(dim=3, devices=2)
OPTIONS = ("rounds", "seed", "evaluate_every", "checkpoint_every", "workers", "target", "devices",
           "tol", "max_queries", "retries", "vectorized", "bounds", "scale", "x_scale", "args",
           "on_failure", "callback", "algorithm", "uplink", "resume", "run_dir")  # fmt: skip


def bowl(x, device):
    return np.sum((x - device) ** 2, axis=-1)


@pytest.mark.parametrize("key", OPTIONS)
def test_minimize_takes_an_argument_or_names_it(key, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for number, odd in enumerate(ODD):
        value = str(number) if key == "run_dir" and isinstance(odd, str) else odd
        options = {"rounds": 2, "devices": 2, "max_queries": 60, key: value}
        with suppress_if_named(key):
            fedzo.minimize(bowl, np.zeros(2), **options)


def test_a_start_is_taken_or_rejected():
    for odd in ODD:
        with suppress_if_named("x0"):
            result = fedzo.minimize(bowl, odd, devices=2, max_queries=60)
            assert result.x.dtype in (np.float32, np.float64)


def test_an_end_of_bounds_is_taken_or_rejected():
    for odd in ODD:
        with suppress_if_named("bounds[0]"):
            fedzo.minimize(bowl, [9, 0], devices=2, max_queries=9, bounds=[(odd, 9), (0, 1)])


def test_a_tensor_is_a_start_and_a_list_may_say_how_many_processes():
    torch = pytest.importorskip("torch")
    start = torch.zeros(2, requires_grad=True)
    assert fedzo.minimize(bowl, start, devices=2, max_queries=60).success
    assert split_options({"workers": ["processes", np.int8(3)]})[0].workers == 3


def test_seeds_of_any_integer_type_give_the_same_run():
    runs = [
        fedzo.minimize(PROBLEM, rounds=3, seed=seed).last.tobytes()
        for seed in (3, np.int32(3), np.uint64(3), np.int8(3), np.array(3))
    ]
    assert len(set(runs)) == 1


def test_starts_of_any_kind_of_list_give_the_same_run():
    pandas = pytest.importorskip("pandas", reason="pandas is not installed")
    starts = ([1, 2], (1.0, 2.0), range(1, 3), np.array([1, 2], object), pandas.Series([1, 2]))
    runs = [fedzo.minimize(bowl, x0, devices=2, max_queries=300).x.tobytes() for x0 in starts]
    assert len(set(runs)) == 1


@pytest.mark.parametrize(
    "x0", [[1, [2]], ["1", "2"], [1j, 2], np.ma.array([1.0, 2.0], mask=[0, 1]), None, [None, 1.0]]
)
def test_what_is_not_a_start(x0):
    with rejects("x0"):
        fedzo.minimize(bowl, x0, devices=2)


def test_numbers_that_need_another_setting():
    fixed = fedzo.FedZO(directions=np.int32(2), fixed_directions=np.uint8(4))
    assert repr(fixed) == repr(fedzo.FedZO(directions=2, fixed_directions=4))
    rician = fedzo.AirComp(channel=Rician(np.float32(2)))
    assert repr(rician) == repr(fedzo.AirComp(channel=Rician(2.0)))
    assert repr(fedzo.AirComp(channel=np.str_("rician"))) == repr(fedzo.AirComp(channel="rician"))


ODD = [
    *(None, True, "3", "", b"3", -1, 0, 3.7, 1e400, np.nan, np.uint64(3), np.array(3)),
    *(np.array([1, 2]), np.ma.masked, [], [1, [2]], {}, {"a": 1}, 3j, decimal.Decimal(3)),
    *(10**400, 2**64, "a\nb", "\0", range(3), ..., int, np.datetime64("2026-01-01")),
]


def tuned(**keywords):
    space = {"a": fedzo.Float(0.0, 1.0)}
    given = {"space": space, "devices": 2, "max_queries": 12, "method": "cma", **keywords}
    return fedzo.tune(lambda params, device, rng: params["a"] ** 2, given.pop("space"), **given)


def attacked(**keywords):
    weights = np.random.default_rng(0).normal(size=(4, 3))
    model = FunctionModel(lambda batch: batch.reshape(-1, 4) @ weights, input_shape=(4,))
    attack = fedzo.UniversalAttack(model, **{"rounds": 1, "eps": 0.1, **keywords})
    return attack.fit([np.full((3, 4), 0.5)], 1)


# The odd values that fit, by parameter. Every other one is refused.
FLOATS = {"-1", "0", "3.7", repr(np.uint64(3)), "array(3)", str(2**64)}
THREE = {repr(np.uint64(3)), "array(3)"}
NONE: set[str] = set()
TUNING = {
    "space": NONE,
    "max_queries": NONE,
    "on_failure": NONE,
    "evaluation_seeds": NONE,
    "method": NONE,
    "parallel": NONE,
    "resume": NONE,
    "devices": THREE,
    "seed": THREE | {"0"},
    "workers": THREE | {"None"},
    "start": {"None", "{'a': 1}"},
    "worst": FLOATS | {"None"},
    "algorithm": {"None"},
    "callback": {"None", "[]"},
    "run_dir": {"None", "'3'", r"'a\nb'"},
}
ATTACK = {
    "norm": NONE,
    "margin": NONE,
    "resume": NONE,
    "c": FLOATS - {"-1"},
    "eps": {"None"},
    "algorithm": {"None"},
    "callback": {"None", "[]"},
    "rounds": THREE | {"0"},
    "seed": THREE | {"0"},
    "target": {"None", "0"},
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("call", "key", "fits"),
    [(tuned, *one) for one in TUNING.items()] + [(attacked, *one) for one in ATTACK.items()],
)
def test_any_argument_is_normalised_or_refused_by_one_line(call, key, fits, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    lines, accepted = [], set()
    for value in ODD:
        try:
            call(**{key: value})
            accepted.add(repr(value))
        except FedzoError as error:
            lines.append(str(error))
    assert accepted == fits
    assert not any("\n" in line for line in lines)


MASKED = [np.ma.masked, np.ma.array([1.0, 2.0, 3.0], mask=[0, 1, 0]), [np.ma.masked] * 3]
# Every public call that takes an array: the parameter, and the call with a masked value for it.
ARRAYS = {
    "x0": lambda odd: fedzo.minimize(bowl, odd, devices=2, max_queries=60),
    "x_scale": lambda odd: fedzo.minimize(
        bowl, np.zeros(3), devices=2, max_queries=60, x_scale=odd
    ),
    "bounds": lambda odd: fedzo.minimize(bowl, np.zeros(3), devices=2, max_queries=60, bounds=odd),
    "target": lambda odd: attacked(target=odd),
    "labels": lambda odd: attack_on([np.full((3, 4), 0.5)], [odd]),
    "images": lambda odd: attack_on([np.ma.array(np.full((3, 4), 0.5), mask=np.eye(3, 4))], 1),
    "inputs": lambda odd: FunctionModel(lambda batch: batch, outputs="logits")(
        np.ma.array(np.ones((2, 3)), mask=np.eye(2, 3))
    ),
    "apply": lambda odd: fedzo.Perturbation(np.zeros(3)).apply(
        np.ma.array(np.full((2, 3), 0.5), mask=np.eye(2, 3))
    ),
    "noise": lambda odd: fedzo.Perturbation(np.ma.array([0.1, 0.2], mask=[0, 1])),
    "answer": lambda odd: fedzo.minimize(lambda x, i: odd, np.zeros(3), devices=2, max_queries=60),
}


def attack_on(images, labels):
    weights = np.random.default_rng(0).normal(size=(4, 3))
    model = FunctionModel(lambda batch: batch.reshape(-1, 4) @ weights, input_shape=(4,))
    return fedzo.UniversalAttack(model, eps=0.1, rounds=1).fit(images, labels)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("key", ARRAYS)
def test_masked_numbers_are_refused_wherever_an_array_is_taken(key):
    for odd in MASKED:
        with pytest.raises((FedzoError, TypeError)):  # of what a function returned: TypeError
            ARRAYS[key](odd)
