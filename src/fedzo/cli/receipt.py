"""``fedzo receipt``: describe a trained model by its start, seeds and scalars, and rebuild it.

A run that trained a torch module writes a receipt of a few KB: the hash of its start, the settings,
and the coefficients of its rounds. With the start, the receipt gives the weights elsewhere, to the
bit, without the data and without a forward pass.

Examples::

    fedzo receipt runs/mine --out model.receipt.json
    fedzo receipt model.receipt.json --apply start.npy --out weights.npy
    fedzo receipt model.receipt.json --apply start.npy --round last --out last.npy
"""

import argparse
import hashlib
import json
from pathlib import Path
from typing import Any

from fedzo.cli.common import add_parser
from fedzo.errors import FedzoError, UsageError

FORMAT = 3


def add_command(commands: Any) -> None:
    """Add the command to the parser."""
    parser = add_parser(commands, "receipt", __doc__)
    parser.add_argument("source", type=Path, metavar="RUN", help="a run folder, or a receipt")
    parser.add_argument(
        "--apply", type=Path, metavar="START", help="rebuild the weights from this start.npy"
    )
    parser.add_argument(
        "--round", choices=("best", "last"), default="best", help="which model to rebuild (best)"
    )
    parser.add_argument(
        "--out", type=Path, metavar="FILE", help="RUN/receipt.json, or with --apply weights.npy"
    )
    parser.set_defaults(command=receipt)


def receipt(arguments: argparse.Namespace) -> int:
    """Write a receipt, or the weights that one gives."""
    import numpy as np

    from fedzo.core.files import write_atomic, writing

    source: Path = arguments.source
    found = _read(source)
    if arguments.apply is None:
        out = arguments.out or (source if source.is_dir() else source.parent) / "receipt.json"
        text = json.dumps(found | {"digest": digest(found)}, separators=(",", ":"))
        write_atomic(out, text.encode())
        sizes = f"{len(found['rounds'])} rounds, {found['dim']:,} weights"
        print(f"{out}: {len(text):,} bytes, {sizes}")
        return 0
    try:
        x = rebuild(found, _start(arguments.apply), arguments.round)
    except FedzoError:
        raise
    except Exception as error:
        message = f"{source} is damaged: {type(error).__name__}"
        raise UsageError(message, code="not-a-receipt") from error
    out = arguments.out or Path("weights.npy")
    with writing(out) as file:
        np.save(file, x)
    print(f"{out}: verified, sha256 {found[arguments.round]['sha256']}")
    return 0


def rebuild(receipt: dict[str, Any], start: Any, which: str = "best") -> Any:
    """Return the best or last model of a receipt from its start; raise unless the hashes agree."""
    import numpy as np

    from fedzo.algorithms.adaptive_rate import AdaptiveRate
    from fedzo.algorithms.compose import Replay
    from fedzo.core.engine import unpack_updates
    from fedzo.runs.registry import ALGORITHMS, make_parts

    if (start.size, str(start.dtype)) != (receipt["dim"], receipt["dtype"]):
        wanted = f"{receipt['dim']:,} numbers of type {receipt['dtype']}"
        raise UsageError(f"--apply: START must have {wanted}", code="other-start")
    if sha256(start) != receipt["start"]:
        message = "--apply: START is not the start of this run: its hash differs"
        raise UsageError(message, code="other-start")
    made: Any = make_parts(receipt["tables"], ALGORITHMS)  # imports nothing
    algorithm, uplink, _ = made
    if (adapts := receipt["adapts"]) is not None:
        algorithm = AdaptiveRate(fedzo=algorithm, adapts=adapts)
    rounds = receipt["rounds"][: receipt[which]["round"]]
    shape = algorithm.coefficients_shape or (0, 0)
    log = [entry for one in rounds for entry in unpack_updates(one, shape, start.dtype)]
    replay = Replay(algorithm, uplink, receipt["seed"], receipt["devices"])
    state = replay.replay(replay.start(start.copy()), range(len(rounds)), log)
    x = np.asarray(replay.composed.model(state))
    if sha256(x) != receipt[which]["sha256"]:
        raise UsageError("the rebuilt weights do not have the hash of the receipt", code="mismatch")
    return x


def sha256(x: Any) -> str:
    """Return the hash of a model's bytes, in little-endian order.

    >>> import numpy as np
    >>> sha256(np.zeros(2, np.float32))[:12]
    'af5570f5a181'
    """
    return hashlib.sha256(x.astype(x.dtype.newbyteorder("<")).tobytes()).hexdigest()


def _read(source: Path) -> dict[str, Any]:
    """Return the receipt of a run folder, or in a file."""
    if source.is_dir():
        return _of_run(source)
    try:
        found = json.loads(source.read_text(encoding="utf-8"))
        right = found["format"] == FORMAT
    except (OSError, ValueError, KeyError, TypeError) as error:
        message = f"{source} is not a run folder or a receipt"
        raise UsageError(message, code="not-a-receipt") from error
    if not right:
        raise UsageError(f"{source} has another format than {FORMAT}", code="receipt-format")
    if found.get("digest") != digest(found):
        raise UsageError(f"{source} has changed since it was written", code="not-a-receipt")
    return dict(found)


def digest(receipt: dict[str, Any]) -> str:
    """Return the hash of everything else in a receipt.

    >>> digest({"format": 3, "digest": "of another"}) == digest({"format": 3})
    True
    """
    others = {key: value for key, value in receipt.items() if key != "digest"}
    return hashlib.sha256(json.dumps(others, sort_keys=True).encode()).hexdigest()


def _of_run(path: Path) -> dict[str, Any]:
    """Return the receipt of a run, checked against its models."""
    from fedzo._version import __version__
    from fedzo.runs.store import RunFolder

    folder = RunFolder(path)
    checkpoint = folder.load()
    if checkpoint is None or not (folder.updates.exists() and folder.start.exists()):
        words = "FedZO writes it for a torch module"
        raise UsageError(f"{path} has no {folder.updates.name}: {words}", code="no-updates-log")
    start, tables = _start(folder.start), checkpoint.config
    last: Any = checkpoint.at.state[0]  # every state begins with x^t
    best, at = checkpoint.at.best.x, checkpoint.at.best.round
    if folder.model.exists() and not folder.best.exists():  # by the last evaluation
        best, at = last, checkpoint.at.round
    lines = folder.updates.read_text(encoding="utf-8").splitlines()
    head, *rounds = [json.loads(line) for line in lines[: 1 + checkpoint.at.round]]
    parts: Any = {name: tables.get(name, {}) for name in ("algorithm", "server", "uplink")}
    chosen = {key: head[key] for key in ("learning_rate", "smoothing") if key in head}
    parts["algorithm"] = {**parts["algorithm"], **chosen}  # numbers in place of "auto"
    return {
        "format": FORMAT,
        "fedzo": __version__,
        "tables": parts,
        "adapts": head.get("adapts"),
        "seed": tables["run"].get("seed", 0),
        "devices": head["devices"],
        "dim": int(start.size),
        "dtype": str(start.dtype),
        "start": sha256(start),
        "best": {"round": at, "sha256": sha256(best)},
        "last": {"round": checkpoint.at.round, "sha256": sha256(last)},
        "rounds": rounds,
    }


def _start(path: Path) -> Any:
    import numpy as np

    try:
        return np.load(path, allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise UsageError(f"{path} is not a .npy file of a start", code="other-start") from error
