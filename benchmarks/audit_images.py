"""Folders of images for ``fedzo audit``: python benchmarks/audit_images.py OUT.

``OUT/lines`` has lines of text, 0 upright and 1 upside down. ``OUT/pages`` has pages turned
clockwise by 0, 90, 180 and 270 degrees. The text is that of docs/design.md.

In a folder with ``skimage/`` and ``facenet_pytorch/``, the unpacked wheels of scikit-image and
facenet-pytorch, ``OUT/faces`` has 100 faces of LFW, 1, and 100 other parts of photos, 0; and
:func:`face` is the model that tells them apart.
"""

import sys
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from PIL import Image, ImageDraw, ImageFont

COUNT = 200


def main(out: Path) -> None:
    """Draw the images."""
    rng = np.random.default_rng(0)
    fonts = sorted((Path(mpl.__file__).parent / "mpl-data/fonts/ttf").glob("DejaVuS*.ttf"))[:8]
    text = (Path(__file__).parents[1] / "docs" / "design.md").read_text(encoding="utf-8")
    words = [word for word in text.split() if word.isalpha() and len(word) > 3]
    for number in range(COUNT):
        font, at = fonts[number % len(fonts)], int(rng.integers(len(words) - 60))
        page = Image.new("RGB", (400, 400), "white")
        letters = ImageFont.truetype(font, int(rng.integers(18, 30)))
        for line in range(9):
            row = " ".join(words[at + 6 * line : at + 6 * line + 6])
            ImageDraw.Draw(page).text((12, 10 + 42 * line), row, fill="black", font=letters)
        _save(page.rotate(-90 * (number % 4)), out / "pages" / str(number % 4), number)
        paper, ink = (tuple(rng.integers(*ends, 3).tolist()) for ends in ((170, 256), (0, 90)))
        strip = Image.new("RGB", (384, 96), paper)
        letters = ImageFont.truetype(font, 44)
        ImageDraw.Draw(strip).text((8, 20), " ".join(words[at : at + 3]), fill=ink, font=letters)
        _save(strip.rotate(180 * (number % 2)), out / "lines" / str(number % 2), number)


def faces(out: Path, file: Path) -> None:
    """Write the faces and other parts of photos that scikit-image ships."""
    for number, pixels in enumerate(np.load(file)):
        image = Image.fromarray(np.rint(255 * pixels).astype(np.uint8))
        _save(image, out / "faces" / str(int(number < 100)), number)


def face() -> Any:
    """Return the second network of MTCNN (Zhang et al., 2016) as facenet-pytorch ships it."""
    import torch
    from torch import nn

    class Turned(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.permute(0, 3, 2, 1).flatten(1)

    def layer(before: int, after: int, size: int) -> list[nn.Module]:
        pool = [nn.MaxPool2d(3, 2, ceil_mode=True)] if size > 2 else []
        return [nn.Conv2d(before, after, size), nn.PReLU(after), *pool]

    layers = [*layer(3, 28, 3), *layer(28, 48, 3), *layer(48, 64, 2), Turned()]
    layers += [nn.Linear(576, 128), nn.PReLU(128), nn.Linear(128, 2)]
    names = ["conv1", "prelu1", "conv2", "prelu2", "conv3", "prelu3"]
    names += ["dense4", "prelu4", "dense5_1"]
    weights = torch.load("facenet_pytorch/data/rnet.pt", weights_only=True)
    for name, part in zip(names, (one for one in layers if list(one.parameters())), strict=True):
        part.load_state_dict({key: weights[f"{name}.{key}"] for key in part.state_dict()})
    return nn.Sequential(*layers)


def _save(image: Image.Image, folder: Path, number: int) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    image.save(folder / f"{number}.png")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
    if (photos := Path("skimage/data/lfw_subset.npy")).exists():
        faces(Path(sys.argv[1]), photos)
