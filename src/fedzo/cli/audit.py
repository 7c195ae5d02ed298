"""``fedzo audit``: attack a model within a budget, and write a report.

One perturbation is tried on all images. The report is DIR/attack.html.

Examples::

    fedzo audit model.onnx --images photos --max-queries 5000
    fedzo audit my_models:make --images photos --range 0 1 --shape 3x64x64
    fedzo audit https://host/v2 --name resnet --images photos --range 0 1
"""

import argparse
import inspect
import json
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedzo.cli.common import add_parser, say
from fedzo.errors import UsageError

if TYPE_CHECKING:
    from fedzo.core.types import Array
    from fedzo.models import Model

_SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".webp")
_RANGES = ((0.0, 1.0), (-1.0, 1.0), (0.0, 255.0))
_IMAGENET = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # the usual mean and std of colours
_PROBES = 20  # images that find the input range
_DEVICES = 5
_FEWEST = 10  # images that the model gets right
_QUERIES_PER_IMAGE = 5  # at least: of a large folder, some images are used


def add_command(commands: Any) -> None:
    """Add the command to the parser."""
    parser = add_parser(commands, "audit", __doc__)
    model = "an ONNX file, http(s)://..., or module:factory of a torch or scikit-learn model"
    parser.add_argument("model", metavar="MODEL", help=model)
    images = "a folder of images, with or without a sub-folder per class"
    parser.add_argument("--images", type=Path, required=True, metavar="FOLDER", help=images)
    parser.add_argument("--eps", default="8/255", help="the largest change; by default 8/255")
    parser.add_argument("--norm", default="inf", help="inf (default) or l2")
    parser.add_argument("--max-queries", type=int, default=10_000, metavar="N")
    parser.add_argument("--shape", metavar="3x224x224", help="of an input, if the model has none")
    parser.add_argument("--range", nargs=2, type=float, metavar=("LOW", "HIGH"), dest="span")
    for key in ("--mean", "--std"):
        words = "of each channel, if inputs are normalised after --range"
        parser.add_argument(key, nargs="+", type=float, metavar="X", help=words)
    parser.add_argument("--outputs", help="logits, probabilities, log-probabilities or labels")
    parser.add_argument("--classes", type=int, metavar="N", help="for outputs that are labels")
    parser.add_argument("--name", help="the model's name at an address")
    parser.add_argument("--request", metavar="JSON", help='such as {"inputs": "$inputs"}')
    parser.add_argument("--parse", metavar="PATH", help="where scores are, such as result.0.scores")
    parser.add_argument("--transfer-to", metavar="MODEL", help="a second model")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("audit"), metavar="DIR")
    parser.set_defaults(command=audit)


def audit(arguments: argparse.Namespace) -> int:
    """Find out about the model, attack it, and print where the report is."""
    import numpy as np

    from fedzo.api.attack import UniversalAttack
    from fedzo.errors import check_count
    from fedzo.variables.perturbation import check_ball

    out: Path = arguments.out
    if out.exists() and any(out.iterdir()):
        raise UsageError(f"--out {out}: is not empty; choose another folder", code="holds-run")
    check_count("--seed", arguments.seed, least=0)
    files, labels = _files(arguments)
    model = _model(arguments)
    shape, eps = _shape(model, arguments.shape), _eps(arguments.eps)
    check_ball(eps, arguments.norm, shape)
    units = np.stack([_read(file, shape) for file in files])
    _find_range(model, units, labels, arguments)
    inputs = _scaled(units, model.input_range)
    order = np.random.default_rng(arguments.seed).permutation(len(inputs))
    predictions = model.predict(_batch(model, inputs))
    found = order if labels is None else model.columns(predictions)
    right = order if labels is None else order[found[order] == labels[order]]
    if len(right) < _FEWEST:
        words = f"the model gets {len(right)} of {len(inputs)} images right: too few to attack it"
        advice = "check --range and --outputs, or name the class folders by column numbers"
        raise UsageError(f"--images {arguments.images}: {words}; {advice}", code="few-right")
    own, held_out = np.split(right, [math.ceil(2 * len(right) / 3)])
    parts = np.array_split(own, min(_DEVICES, len(own)))
    attack = UniversalAttack(
        model,
        eps=eps,
        norm=arguments.norm,
        seed=arguments.seed,
        run_dir=out,
        transfer_to=arguments.transfer_to,
    )
    pairs = [inputs[part] for part in parts], [predictions[part] for part in parts]
    attack.fit(*pairs, held_out=(inputs[held_out], predictions[held_out]))
    say(json.loads((out / "attack.json").read_text(encoding="utf-8"))["summary"])
    print(out / "attack.html")
    return 0


def _eps(text: str) -> float:
    above, divided, below = text.partition("/")
    try:
        return float(above) / (float(below) if divided else 1)
    except (ValueError, ZeroDivisionError):
        words = f"--eps {text}: must be a number or a fraction, such as 8/255"
        raise UsageError(words, code="bad-eps") from None


def _files(arguments: argparse.Namespace) -> "tuple[list[Path], Array | None]":
    """Return images of a folder, and their columns, if it has a sub-folder per class.

    If the folder has many, these are as many as a share of the queries allows, chosen at random.
    Columns follow from all sub-folders: a class may have no image among those.
    """
    import numpy as np

    folder: Path = arguments.images
    if not folder.is_dir():
        raise UsageError(f"--images {folder}: is not a folder", code="no-folder")
    files = sorted(file for file in folder.rglob("*") if file.suffix.lower() in _SUFFIXES)
    if len(files) < _FEWEST:
        words = f"holds {len(files)} images ({', '.join(_SUFFIXES)}), not {_FEWEST} or more"
        raise UsageError(f"--images {folder}: {words}", code="few-images")
    probes = _PROBES * (len(_RANGES) + 1)
    most = (arguments.max_queries - probes) // _QUERIES_PER_IMAGE
    if most < _FEWEST:
        words = f"must be {probes + _QUERIES_PER_IMAGE * _FEWEST} or more"
        raise UsageError(f"--max-queries {arguments.max_queries}: {words}", code="few-queries")
    flat = all(file.parent == folder for file in files)
    labels = None if flat else _columns([file.relative_to(folder).parts[0] for file in files])
    if most < len(files):
        say(f"{most:,} of {len(files):,} images are used: more would take too many queries")
        rng = np.random.default_rng(arguments.seed)
        chosen = np.sort(rng.choice(len(files), most, replace=False))
        files, labels = [files[i] for i in chosen], None if labels is None else labels[chosen]
    return files, labels


def _model(arguments: argparse.Namespace) -> "Model":
    """Return the model of the arguments."""
    from fedzo import models
    from fedzo.api.attack import as_model
    from fedzo.core.importing import import_object
    from fedzo.models.loading import called

    spec = arguments.model
    options: dict[str, Any] = {"max_queries": arguments.max_queries}
    for key in ("outputs", "classes", "mean", "std"):
        if getattr(arguments, key) is not None:
            options[key] = getattr(arguments, key)
    if spec.startswith(("http://", "https://")):
        if arguments.request is not None:
            try:
                options["request"] = json.loads(arguments.request)
            except ValueError as error:
                words = f"--request: is not JSON: {error}"
                raise UsageError(words, code="bad-request") from None
        options |= {"parse": arguments.parse} if arguments.parse is not None else {}
        options |= {"model": arguments.name} if arguments.name is not None else {}
        if not {"model", "request", "parse"} & options.keys():
            words = f"{spec}: give --name for the Open Inference Protocol, or --request and --parse"
            raise UsageError(words, code="no-name")
        if arguments.shape is not None:
            options["input_shape"] = _sizes(arguments.shape)
        return models.load(spec, **options)
    if ":" not in spec or spec.endswith(".onnx"):
        return models.load(spec, **options)
    made = import_object("MODEL", spec)
    makes = inspect.isroutine(made) or isinstance(made, type)
    model = as_model(called(spec) if makes else made, **options)
    model.name = spec  # not "Sequential"
    return model


def _sizes(text: str) -> tuple[int, ...]:
    sizes = text.lower().split("x")
    if not all(size.isdecimal() and int(size) > 0 for size in sizes):
        raise UsageError(f"--shape {text}: must be like 3x224x224", code="bad-shape")
    return tuple(int(size) for size in sizes)


def _shape(model: "Model", given: str | None) -> tuple[int, ...]:
    """Return the shape of an image for the model: that of the model, or of the argument."""
    from fedzo.core.waves import is_image

    shape = model.input_shape if given is None else _sizes(given)
    for colours in (1, 3):  # rows of a square image
        if shape is not None and len(shape) == 1 and given is None:
            side = math.isqrt(shape[0] // colours)
            if colours * side * side == shape[0]:
                shape = (side, side) if colours == 1 else (3, side, side)
    if shape is None or not is_image(shape):
        told = "gives no shape of its inputs" if shape is None else f"takes {shape}"
        words = f"{model.name} {told}: give the shape of an image, such as --shape 3x224x224"
        raise UsageError(words, code="no-shape")
    if model.input_shape is not None and math.prod(shape) != math.prod(model.input_shape):
        words = f"--shape {given}: does not fit {model.name}, which takes {model.input_shape}"
        raise UsageError(words, code="bad-shape")
    return shape


def _read(file: Path, shape: tuple[int, ...]) -> "Array":
    """Return an image in [0, 1] in the shape of the model's inputs."""
    import numpy as np
    from PIL import Image

    first = len(shape) == 3 and shape[0] in (1, 3)
    height, width = shape[1:] if first else shape[:2]
    grey = len(shape) == 2 or (shape[0] if first else shape[2]) == 1
    try:
        with Image.open(file) as picture:
            fitted = picture.convert("L" if grey else "RGB").resize((width, height))
    except OSError as error:
        raise UsageError(
            f"{file}: is not an image that can be read: {error}", code="image"
        ) from None
    pixels = np.asarray(fitted, np.float32) / 255
    return (np.moveaxis(pixels, -1, 0) if first and not grey else pixels).reshape(shape)


def _scaled(units: "Array", span: tuple[float, float]) -> "Array":
    import numpy as np

    low, high = span
    return (low + units * (high - low)).astype(np.float32).clip(low, high)


def _batch(model: "Model", inputs: "Array") -> "Array":
    """Return inputs in the shape that the model takes: images, or rows."""
    return inputs.reshape(-1, *(model.input_shape or inputs.shape[1:]))


def _find_range(
    model: "Model", units: "Array", labels: "Array | None", arguments: argparse.Namespace
) -> None:
    """Set the model's input range and kind of scores, by the labels that folders tell."""
    import numpy as np

    from fedzo.models.base import range_of

    some = np.unique(np.arange(_PROBES) * len(units) // _PROBES)
    if labels is None and arguments.span is None:
        words = "without a sub-folder per class the input range is unknown: give --range LOW HIGH"
        raise UsageError(f"--images {arguments.images}: {words}, such as 0 1", code="no-range")
    spans = _RANGES if arguments.span is None else (range_of(arguments.span, "--range"),)
    tried: list[Any] = [(span, model.moments) for span in spans]
    if arguments.span is None and model.moments is None and 3 in (units.shape[1], units.shape[-1]):
        tried.append((_RANGES[0], tuple(map(np.array, _IMAGENET))))
    rates = []
    for span, model.moments in tried:
        scores = model(_batch(model, _scaled(units[some], span)))
        rates.append(0 if labels is None else np.mean(scores.argmax(axis=1) == labels[some]))
        if arguments.outputs is None and model.outputs == "logits":
            sums = np.abs(scores.sum(axis=1) - 1).max()
            likely = scores.min() >= 0 and sums < 1e-3
            model.outputs = "probabilities" if likely else "logits"
    model.input_range, model.moments = tried[int(np.argmax(rates))]
    if arguments.span is None:
        way = "" if model.moments is None else ", normalised by ImageNet's mean and std"
        say(f"inputs in {model.input_range}{way}: {max(rates):.0%} of {len(some)} images right")


def _columns(names: list[str]) -> "Array":
    """Return a column per image: the number that its folder is named by, or the folder's place.

    >>> _columns(["7", "12", "7"]), _columns(["cat", "dog", "cat"])
    (array([ 7, 12,  7]), array([0, 1, 0]))
    """
    import numpy as np

    if all(name.isdecimal() for name in names):
        return np.array([int(name) for name in names])
    return np.unique(names, return_inverse=True)[1]
