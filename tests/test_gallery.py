"""The gallery: the site's build runs every example (`test_site.py`); here are the rules for them.

The three examples that bring fedzo to other libraries are used with those libraries, too.
"""

import ast
import importlib.util
import re
from pathlib import Path

import numpy as np
import pytest

EXAMPLES = sorted((Path(__file__).parents[1] / "examples" / "gallery").glob("*.py"))
EVERY = pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)


def load(name):
    """Return an example as a module, without its part after the first ``# %%``: the class alone."""
    path = next(path for path in EXAMPLES if path.stem == name)
    text = path.read_text().split("# %%")[0]
    spec = importlib.util.spec_from_loader(name, loader=None)
    module = importlib.util.module_from_spec(spec)
    exec(compile(text, str(path), "exec"), vars(module))
    return module


def test_there_are_enough():
    assert 12 <= len(EXAMPLES) <= 15


@EVERY
def test_form(path):
    text = path.read_text()
    title, users = ast.get_docstring(ast.parse(text)).split("\n\n")
    assert re.fullmatch(r"# [A-Z].*", title)
    assert users.startswith("**For ")
    assert "plt.subplots(" in text
    assert path.name.startswith("plot_")
    assert len(text.splitlines()) < 85


@pytest.mark.parametrize(
    ("example", "name"),
    [
        ("plot_optuna_sampler", "FedzoSampler"),
        ("plot_nevergrad", "Fedzo"),
        ("plot_sklearn_estimator", "ZeroOrderRegressor"),
    ],
)
def test_bridges_are_short(example, name):
    tree = ast.parse(next(path for path in EXAMPLES if path.stem == example).read_text())
    node = next(n for n in tree.body if isinstance(n, ast.ClassDef) and n.name == name)
    assert node.end_lineno - node.lineno < 40


def test_optuna_sampler():
    """A maximisation with a log parameter, a categorical one, and a pruned trial."""
    optuna = pytest.importorskip("optuna", reason="needs fedzo[tune]")
    pytest.importorskip("sklearn", reason="needs fedzo[tune]")
    sampler = load("plot_optuna_sampler").FedzoSampler(seed=1)
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    study = optuna.create_study(sampler=sampler, direction="maximize")

    def objective(trial):
        x, rate = trial.suggest_float("x", -3, 3), trial.suggest_float("r", 1e-4, 1, log=True)
        trial.suggest_categorical("kind", ["a", "b"])
        if trial.number == 7:
            raise optuna.TrialPruned
        return -((x - 2) ** 2) - np.log10(rate / 0.01) ** 2

    study.optimize(objective, n_trials=60)
    assert study.best_value > -0.01
    assert study.best_params["x"] == pytest.approx(2, abs=0.2)


def test_nevergrad():
    ng = pytest.importorskip("nevergrad", reason="needs nevergrad")
    load("plot_nevergrad")
    space = ng.p.Instrumentation(x=ng.p.Scalar(lower=-4, upper=4), y=ng.p.Array(shape=(3,)))
    optimizer = ng.optimizers.registry["Fedzo"](parametrization=space, budget=250)
    found = optimizer.minimize(lambda x, y: (x - 1) ** 2 + float(np.sum((y - 0.5) ** 2)))
    assert found.kwargs["x"] == pytest.approx(1, abs=0.05)
    assert found.kwargs["y"] == pytest.approx(np.full(3, 0.5), abs=0.05)
    assert optimizer.num_tell == 250


def test_sklearn_estimator():
    base = pytest.importorskip("sklearn.base", reason="needs fedzo[tune]")
    module = load("plot_sklearn_estimator")
    rng = np.random.default_rng(0)
    inputs = rng.normal(size=(80, 3))
    targets = inputs @ [1.0, -2.0, 0.5] + 3
    targets[:8] += 100  # outliers, which an absolute error ignores
    model = module.ZeroOrderRegressor(lambda residuals: np.mean(np.abs(residuals)))
    fitted = base.clone(model).fit(inputs, targets)
    assert fitted.coef_ == pytest.approx([1.0, -2.0, 0.5], abs=0.05)
    assert fitted.predict(inputs[8:]) == pytest.approx(targets[8:], abs=0.2)
    with pytest.raises(ValueError, match="features"):
        fitted.predict(inputs[:, :2])
