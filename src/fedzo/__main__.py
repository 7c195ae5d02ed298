"""``python -m fedzo``: the command line, where no script is on the path."""

import sys

from fedzo_command import start

if __name__ == "__main__":
    sys.exit(start())
