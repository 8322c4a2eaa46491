"""A gpuckptd that kills itself with SIGKILL where a test says, in one word in the file $DIE_AT: a stage, or `Class.method`.

At the end of the stage; right after the method has returned. While the file $HOLD exists, operations wait at each of these places,
once, until the test removes the file $HOLD.held, which has the word. With $JUMPS the clock jumps at each of them. The rest is the daemon
as it is.
"""

import functools
import importlib
import os
import signal
import sys
import threading
import time
from contextlib import contextmanager, suppress
from pathlib import Path

from jumping_clock import Clock

from jupyter_gpuckpt.daemon.app import main
from jupyter_gpuckpt.wire.progress import Progress

holding, held = threading.Lock(), set()


def die_here(name):
    """Kill this process, or wait, if the test has named `name`."""
    if os.environ.get("JUMPS"):
        Clock(os.environ["TEST_CLOCK"]).jump()
    with suppress(FileNotFoundError):
        if Path(os.environ["DIE_AT"]).read_text() == name:
            os.kill(os.getpid(), signal.SIGKILL)
    if not Path(os.environ["HOLD"]).exists():
        return
    with holding:
        if name not in held and Path(os.environ["HOLD"]).exists():
            held.add(name)
            path = Path(os.environ["HOLD"] + ".held")
            path.write_text(name)
            while path.exists():
                time.sleep(0.01)


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


def prepare():
    """Have this process die, or wait, at the ends of all stages and of the methods that the test names."""
    dying_stages()
    for chosen in filter(None, os.environ.get("DYING_METHODS", "").split(",")):
        dying_method(chosen)


if __name__ == "__main__":
    prepare()
    sys.exit(main())
