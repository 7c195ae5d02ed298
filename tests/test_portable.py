"""The package without modules that only POSIX systems have, and without heavy ones until used."""

import subprocess
import sys

import pytest

BLOCKED = ("fcntl", "resource", "pwd", "grp", "termios", "tty", "pty", "syslog")
WITHOUT = f"""
import sys
for name in {BLOCKED}:
    sys.modules[name] = None  # importing it raises ImportError
"""


@pytest.mark.parametrize(
    "use",
    [
        "import fedzo; [getattr(fedzo, n) for n in dir(fedzo) if n not in ('flower', 'optim')]",
        "import fedzo; assert fedzo.minimize(lambda x: float(x @ x), [1.0, 2.0]).success",
        "from fedzo.cli import main; assert main(['run', 'quadratic', '--rounds', '3']) == 0",
        "from fedzo.cli import main; assert main(['data', 'list']) == 0",
    ],
)
def test_without_posix(use, tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT + use], cwd=tmp_path, capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


def test_matplotlib_and_cmaes_are_imported_where_they_are_used():
    code = (
        "import sys, fedzo\n"
        "fedzo.minimize(lambda x, i: float(x @ x), [1.0], devices=2, method='fedzo', rounds=2)\n"
        "print({'matplotlib', 'cmaes', 'optuna', 'torch', 'flwr'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, text=True)
    assert done.stdout == "set()\n"
