"""`python -m jupyter_gpuckpt.daemon`."""

from __future__ import annotations

import logging
import os
import sys

from .app import main

_status = main()
logging.shutdown()
sys.stdout.flush()
sys.stderr.flush()
# Threads that wait for a remote's answer must not delay the exit: the next daemon waits for this one's lock.
os._exit(_status)
