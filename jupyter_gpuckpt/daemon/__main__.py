"""`python -m jupyter_gpuckpt.daemon`."""

from __future__ import annotations

import sys

from .app import main

sys.exit(main())
