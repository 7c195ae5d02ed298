"""Run the sweeps of docs/choose.md, and copy their pictures to docs/images/choose-*.png.

    python tools/make_choose.py FOLDER [NAME ...]

The commands are those of the page; a NAME, such as smoothing, selects a picture. Runs that FOLDER
already has are not repeated.
"""

import argparse
import os
import re
import shlex
from pathlib import Path

from make_results import DOCS, copy_picture

from fedzo.cli import main as fedzo

PAGE = DOCS / "choose.md"
BLOCKS = re.compile(r"^```sh\n(?P<code>.*?)^```$(?P<after>[^`]*)", re.M | re.S)
OUT = "--out"


def main() -> None:
    """Do the commands that stand directly above a picture."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("names", nargs="*", metavar="NAME", help="of a picture; all by default")
    arguments = parser.parse_args()
    folder = arguments.folder.absolute()
    folder.mkdir(parents=True, exist_ok=True)
    for block in BLOCKS.finditer(PAGE.read_text(encoding="utf-8")):
        shown = re.match(r"\s*!\[.*\]\(images/choose-(.*)\.png\)", block["after"])
        if shown is None or (arguments.names and shown[1] not in arguments.names):
            continue
        os.chdir(folder)
        for line in block["code"].replace("\\\n", " ").splitlines():
            words = shlex.split(line)
            if words[0] == "cd":
                os.chdir(words[1])
            elif fedzo(words[1:]):
                raise SystemExit(f"{line}: failed")
        out = Path(words[words.index(OUT) + 1])
        copy_picture(
            out if out.suffix else out / "sweep.png", DOCS / f"images/choose-{shown[1]}.png"
        )


if __name__ == "__main__":
    main()
