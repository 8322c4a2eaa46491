"""`python -m jupyter_gpuckpt.cli`: the same as `jupyter gpuckpt`."""

import sys

from .app import main

sys.exit(main())
