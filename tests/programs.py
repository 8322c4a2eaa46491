"""Programs that tests run: Jupyter's, and cells with a certain effect."""

from __future__ import annotations

import subprocess
import sys


def python_module(module: str) -> list[str]:
    """Return the beginning of a command that runs the module as a program; its arguments follow."""
    return [sys.executable, "-m", module]


def run_command(env, *words, status=0, stdin=subprocess.DEVNULL):
    """Run `jupyter gpuckpt` as a program of its own, without a terminal; check its exit status and return the completed process."""
    done = subprocess.run(
        [*python_module("jupyter_gpuckpt.cli"), *words],
        stdin=stdin,
        capture_output=True,
        env=env,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == status, done.stdout + done.stderr
    return done


#: Counts aloud, a hundred times a second.
COUNTER = """
    import time
    n = 0
    while True:
        n += 1
        print(n, flush=True)
        time.sleep(0.01)
"""

#: Makes the process that runs it impossible to save: it adds a seccomp filter of its own (which allows everything), as a
#: browser's sandbox does.
SANDBOX = """
import ctypes, struct
libc = ctypes.CDLL(None, use_errno=True)
rule = ctypes.create_string_buffer(struct.pack("=HBBI", 0x06, 0, 0, 0x7FFF0000))
filter = struct.pack("HxxxxxxP", 1, ctypes.addressof(rule))
assert libc.prctl(38, 1, 0, 0, 0) == 0  # PR_SET_NO_NEW_PRIVS
assert libc.prctl(22, 2, filter) == 0  # PR_SET_SECCOMP
"""

#: Defines `noise(length)` in a program or a cell, in one line: random bytes, in a third of the processor time of os.urandom's.
NOISE = (
    "from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes; import os; noise = lambda length: "
    "Cipher(algorithms.AES(os.urandom(16)), modes.CTR(os.urandom(16))).encryptor().update(bytes(length))"
)
