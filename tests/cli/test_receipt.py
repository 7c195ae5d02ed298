"""A receipt rebuilds a trained model from its start, to the bit, on any processor."""

import json
import os
import subprocess
import sys

import numpy as np
import pytest

import fedzo
from fedzo.cli import main
from fedzo.cli.receipt import digest
from fedzo.errors import Exit

torch = pytest.importorskip("torch")
INPUTS = torch.randn(60, 6, generator=torch.Generator().manual_seed(0))
LABELS = INPUTS[:, :3].argmax(1)
DATA = [(INPUTS[i::3], LABELS[i::3]) for i in range(3)]
AUTO = fedzo.server.Adam(learning_rate="auto")
ADAM, COSINE = fedzo.server.Adam(learning_rate=0.01), fedzo.schedules.Cosine(rounds=9, warmup=2)
RUNS = {
    "plain call": {},
    "seeds": {"algorithm": fedzo.FedZO(directions=2), "uplink": fedzo.Seeds()},
    "some": {"algorithm": fedzo.FedZO(learning_rate=0.05, participants=2, weighting="size")},
    "adam": {"algorithm": fedzo.FedZO(directions=2, server=ADAM, schedule=COSINE)},
    "fixed": {
        "algorithm": fedzo.FedZO(directions=2, fixed_directions=8),
        "uplink": fedzo.Seeds(),
    },
    "auto": {"algorithm": fedzo.FedZO(learning_rate="auto", smoothing="auto", directions=4)},
    "auto, adam": {
        "algorithm": fedzo.FedZO(smoothing="auto", directions=4, server=AUTO),
        "uplink": fedzo.Seeds(),
    },
    "auto length": {"algorithm": fedzo.FedZO(smoothing="auto", directions=4)},
    "zo-sgd": {"algorithm": fedzo.ZOSGD(directions=4)},
    "air": {"algorithm": fedzo.FedZO(direction_kind="gaussian"), "uplink": fedzo.AirComp()},
}


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def loss(module, batch):
    return torch.nn.functional.cross_entropy(module(batch[0]), batch[1], reduction="none")


def problem(in_place=False):
    torch.manual_seed(0)
    module = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.Tanh(), torch.nn.Linear(8, 3))
    return fedzo.TorchProblem(module, loss, DATA, in_place=in_place)


def run(folder, name="seeds", rounds=8, in_place=False, **more):
    options = {"rounds": rounds, "evaluate_every": 3, "run_dir": folder, "seed": 4}
    return fedzo.minimize(problem(in_place), **RUNS[name], **options, **more)


@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize("name", RUNS)
def test_the_weights_are_rebuilt_to_the_bit(name, in_place, tmp_path, capsys):
    result = run(tmp_path / "run", name, in_place=in_place)
    receipt, start = tmp_path / "receipt.json", tmp_path / "run" / "start.npy"
    assert main(["receipt", str(tmp_path / "run"), "--out", str(receipt)]) == Exit.DONE
    assert receipt.stat().st_size < 20_000
    for which, x in (("best", result.x), ("last", result.last)):
        out = tmp_path / f"{which}.npy"
        words = ["receipt", str(receipt), "--apply", str(start), "--round", which]
        assert main([*words, "--out", str(out)]) == Exit.DONE
        np.testing.assert_array_equal(np.load(out), x)
    assert "verified" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["seeds", "auto", "auto, adam"])
@pytest.mark.parametrize("stop", [0, 4])
def test_a_resumed_run_has_the_receipt_of_the_whole(name, stop, tmp_path):
    """Also if it was stopped before its first round, when "auto" had already chosen numbers."""
    run(tmp_path / "whole", name)
    run(tmp_path / "cut", name, callback=lambda progress: progress.round == stop)
    run(tmp_path / "cut", name, resume=True)
    texts = []
    for folder in (tmp_path / "whole", tmp_path / "cut"):
        assert main(["receipt", str(folder)]) == Exit.DONE
        texts.append((folder / "receipt.json").read_text())
    assert texts[0] == texts[1]


def test_what_does_not_fit_is_one_line(tmp_path, capsys):
    run(tmp_path / "run")
    receipt, start = tmp_path / "run" / "receipt.json", tmp_path / "run" / "start.npy"
    main(["receipt", str(tmp_path / "run")])
    whole = json.loads(receipt.read_text())
    np.save(tmp_path / "other.npy", 1 + np.load(start))
    np.save(tmp_path / "short.npy", np.load(start)[:-1])
    (tmp_path / "text.npy").write_text("no array")
    wrong = [[str(receipt), "--apply", str(tmp_path / f"{one}.npy")] for one in
             ("other", "short", "text", "missing")]  # fmt: skip
    changed = dict(whole, rounds=[whole["rounds"][0], *whole["rounds"][:-1]])
    imports = dict(whole, tables={"algorithm": {"name": "os:abort"}})
    signs = dict(whole, last=dict(whole["last"], round=-1))
    bad = [changed, imports, signs, dict(whole, rounds=[[1]] * 8), dict(whole, rounds=[]), {}, []]
    bad += [{key: value for key, value in whole.items() if key != left} for left in whole]
    for number, one in enumerate(bad):
        path = tmp_path / f"bad{number}.json"
        path.write_text(json.dumps(one))
        wrong.append([str(path), "--apply", str(start), "--round", "last"])
        if "tables" in one:  # what a digest of its own does not tell
            new = path.with_suffix(".new.json")
            new.write_text(json.dumps(one | {"digest": digest(one)}))
            if one.keys() == whole.keys():
                wrong.append([str(new), "--apply", str(start), "--round", "last"])
    fedzo.minimize(lambda x, i: x @ x, [1.0], devices=2, run_dir=tmp_path / "function")
    wrong += [[str(tmp_path / "function")], [str(tmp_path / "nowhere")]]
    for words in wrong:
        capsys.readouterr()
        out = ["--out", str(tmp_path / "out.npy")]
        assert main(["receipt", *words, *out]) == Exit.NOTHING_RUN, words
        assert len(capsys.readouterr().err.strip().splitlines()) == 1, words
        assert not (tmp_path / "out.npy").exists()


def test_a_receipt_of_which_any_part_was_changed_is_one_line(tmp_path, capsys):
    """Each number and text by itself; with its digest made anew, the weights tell, or are right."""
    result = run(tmp_path / "run", "plain call")
    receipt, start = tmp_path / "run" / "receipt.json", tmp_path / "run" / "start.npy"
    main(["receipt", str(tmp_path / "run")])
    whole, out = json.loads(receipt.read_text()), tmp_path / "out.npy"

    def parts(tree, path=()):
        if isinstance(tree, dict | list):
            for key in tree if isinstance(tree, dict) else range(min(3, len(tree))):
                yield from parts(tree[key], (*path, key))
        else:
            yield path

    for path in parts(whole):
        for value in (None, "other", -1, 10**12, 1e308):
            changed = json.loads(receipt.read_text())
            inner = changed
            for key in path[:-1]:
                inner = inner[key]
            inner[path[-1]] = value
            for one in (changed, changed | {"digest": digest(changed)}):
                receipt.with_name("changed.json").write_text(json.dumps(one))
                words = ["receipt", str(receipt.with_name("changed.json")), "--apply", str(start)]
                code = main([*words, "--out", str(out)])
                told = capsys.readouterr().err.strip().splitlines()
                assert code in (Exit.NOTHING_RUN, Exit.DONE), (path, value)
                assert len(told) == (code == Exit.NOTHING_RUN), (path, value)
                if code == Exit.DONE:
                    assert (one["digest"] == digest(one) and one is not changed) or one == whole
                    np.testing.assert_array_equal(np.load(out), result.x)


@pytest.fixture(scope="module")
def kernels(tmp_path_factory):
    """Return a folder for what the tests of this file compile for other processors."""
    return tmp_path_factory.mktemp("kernels")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["plain call", "auto", "adam", "air"])
def test_every_processor_rebuilds_the_same_bits(name, tmp_path, kernels):
    """Kernels for AVX2, for AVX-512 and for a processor without either, in other processes."""
    run(tmp_path / "run", name)
    receipt, start = tmp_path / "run" / "receipt.json", tmp_path / "run" / "start.npy"
    main(["receipt", str(tmp_path / "run")])
    found = set()
    for numba, blas in [("haswell", "Haswell"), ("", ""), ("nehalem", "Nehalem")]:
        own = {"NUMBA_CPU_NAME": numba, "OPENBLAS_CORETYPE": blas} if numba else {}
        folder = {"NUMBA_CACHE_DIR": str(kernels / (numba or "here"))}
        words = [sys.executable, "-m", "fedzo", "receipt", str(receipt), "--apply", str(start)]
        out = tmp_path / f"{numba}.npy"
        done = subprocess.run(
            [*words, "--out", str(out)],
            env={**os.environ, **own, **folder},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        found.add(out.read_bytes())
    assert len(found) == 1
