"""All is written, or it is said that it was not."""

import subprocess
import sys

#: Linux writes up to the largest size that a file may have, and refuses what comes after that.
PROGRAM = """
import errno, os, resource, sys
from jupyter_gpuckpt.linux.pwrite import pwrite_all
descriptor = os.open(sys.argv[1], os.O_RDWR)
_, most = resource.getrlimit(resource.RLIMIT_FSIZE)
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, most))
pwrite_all(descriptor, memoryview(b"a" * 500), 100)
try:
    pwrite_all(descriptor, b"b" * 1000, 600)
except OSError as error:
    sys.exit(0 if error.errno == errno.EFBIG else "another error")
sys.exit("half of it was taken for all")
"""


def test_what_is_written_in_part_is_gone_on_with(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"-" * 10)
    subprocess.run([sys.executable, "-c", PROGRAM, str(path)], check=True)
    assert path.read_bytes() == b"-" * 10 + b"\0" * 90 + b"a" * 500 + b"b" * 400
