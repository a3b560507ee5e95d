"""`python -m nbpipe` is the command `nbpipe`."""

import sys

from .cli import main

if __name__ == "__main__":
    sys.exit(main())
