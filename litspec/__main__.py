"""`python -m litspec` is the `litspec` command."""

import sys

from litspec.cli import main

if __name__ == "__main__":
    sys.exit(main())
