"""``python -m fedzo``: the command line, where no script is on the path."""

import sys

from fedzo.cli import main

if __name__ == "__main__":
    sys.exit(main())
