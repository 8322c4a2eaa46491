"""A gpuckptd that kills itself with SIGKILL where a test says, in one word in the file $DIE_AT: a stage, or `Class.method`.

At the end of the stage; right after the method has returned. The rest is the daemon as it is.
"""

import functools
import importlib
import os
import signal
import sys
from contextlib import contextmanager
from pathlib import Path

from jupyter_gpuckpt.daemon.app import main
from jupyter_gpuckpt.progress import Progress


def die_here(name):
    """Kill this process if the test has named `name`."""
    try:
        wanted = Path(os.environ["DIE_AT"]).read_text()
    except FileNotFoundError:
        return
    if wanted == name:
        os.kill(os.getpid(), signal.SIGKILL)


def dying_stages():
    stage = Progress.stage

    @contextmanager
    def dying_stage(progress, name, *arguments, **options):
        with stage(progress, name, *arguments, **options):
            yield
        die_here(str(name))

    Progress.stage = dying_stage


def dying_method(name):
    module, cls, method = name.rsplit(".", 2)
    owner = getattr(importlib.import_module(module), cls)
    function = getattr(owner, method)

    @functools.wraps(function)
    def dying(*arguments, **options):
        result = function(*arguments, **options)
        die_here(name)
        return result

    setattr(owner, method, dying)


if __name__ == "__main__":
    dying_stages()
    for chosen in filter(None, os.environ.get("DYING_METHODS", "").split(",")):
        dying_method(chosen)
    sys.exit(main())
