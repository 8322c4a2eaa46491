"""Sockets in CRIU's images, read where few addresses exist."""

import os
import subprocess
import sys

import pytest

CODE = """
import pathlib, sys
from jupyter_gpuckpt.engine.criu import inet_images
from tests.fuzz.test_images import INET, image, message
path = pathlib.Path(sys.argv[1])
words = {"4": [0x0100A8C0], "6": [0x000000FD, 0, 0, 0x01000000], "::1": [0, 0, 0, 0x01000000]}[sys.argv[2]]
family = 2 if len(words) == 1 else 10
fields = [(number, family if number == 3 else value) for number, value in INET if number not in (11, 12)]
fields += [(11, word) for word in words] + [(12, 0)] * len(words)
path.write_bytes(image(message((1, 4), (2, 8), (4, fields))))
moved = inet_images.move(path, {})
print(moved.server_ports, moved.server_addresses)
"""


@pytest.mark.skipif(os.getuid() != 0, reason="a network namespace needs root")
@pytest.mark.parametrize(
    ("socket", "expected"),
    [
        ("4", "{} {'192.168.0.1': '127.0.0.1'}"),
        ("6", "{} {'fd00::1': '::1'}"),
        ("::1", "{} {}"),
    ],
)
def test_the_loopback_is_taken_even_where_it_does_not_exist(tmp_path, socket, expected):
    # Linux takes every IPv4 address as its own until a device is up (net/ipv4/fib_frontend.c).
    script = 'ip link set lo up && ip addr del ::1/128 dev lo && exec "$@"'
    words = ["unshare", "--net", "sh", "-c", script, "sh", sys.executable, "-c", CODE]
    words += [str(tmp_path / "files.img"), socket]
    done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=60)
    if "unshare" in done.stderr and "Operation not permitted" in done.stderr:
        pytest.skip("no namespace can be made here")
    assert done.stdout.strip() == expected, done.stderr
