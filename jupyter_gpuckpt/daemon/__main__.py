"""`python -m jupyter_gpuckpt.daemon`."""

from __future__ import annotations

import gc
import logging
import os
import sys

# NumPy's library of linear algebra would start a thread per core at its import. The daemon uses none of its functions.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
# Imports make many objects that live as long as the program: looking for garbage among them only takes time.
gc.disable()
from .app import main  # noqa: E402 - after the two settings above

gc.freeze()
gc.enable()

_status = main()
logging.shutdown()
sys.stdout.flush()
sys.stderr.flush()
# Threads that wait for a remote's answer must not delay the exit: the next daemon waits for this one's lock.
os._exit(_status)
