"""What ``fedzo.problems`` shows: its public names only, each imported when it is used."""

import subprocess
import sys

import fedzo.problems
from fedzo.core.importing import import_object
from fedzo.problems import PROBLEMS

NAMES = {
    "Attack", "FunctionObjective", "Quadratic", "Softmax", "TextProblem", "TorchProblem", "Tuning",
    "attack", "softmax", "text", "tuning",
}  # fmt: skip


def test_the_public_names_are_shown_and_no_others():
    assert set(dir(fedzo.problems)) == NAMES == set(fedzo.problems.__all__)
    assert set(dir(fedzo.problems.attack)) == {"Attack", "attack"}


def test_a_name_is_the_same_whether_its_file_was_imported_before_or_not():
    import fedzo.problems.hyperparameters
    import fedzo.problems.softmax_regression

    assert fedzo.problems.softmax is fedzo.problems.softmax_regression.softmax
    assert fedzo.problems.tuning is fedzo.problems.hyperparameters.tuning


def test_configurations_name_factories_that_exist():
    assert all(callable(import_object("problem.name", path)) for path in PROBLEMS.values())


def test_problems_are_imported_when_they_are_used():
    code = (
        "import sys, fedzo.problems; first = set(sys.modules); fedzo.problems.Quadratic; "
        "print(sorted(m for m in first if m.startswith('fedzo.')), 'numba' in first, "
        "'fedzo.problems.network' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "['fedzo.problems'] False False"
