"""Which kernels of a dead server a new server may claim."""

import pytest

from jupyter_gpuckpt.daemon.owners import belongs
from jupyter_gpuckpt.daemon.records import KernelRecord
from jupyter_gpuckpt.model import LaunchSpec
from jupyter_gpuckpt.place import Place
from jupyter_gpuckpt.protocol import Owner, OwnerKind

HERE = Place(0, "boot", [1, 2, 3, 4], "0::/", "/data")
SERVER, SCRIPT = OwnerKind.SERVER, OwnerKind.SCRIPT


def server(root_dir, hub_server="", kind=SERVER):
    return Owner("o", kind, 1, 1.0, hub_server, root_dir)


def record(owner, jupyter):
    spec = LaunchSpec("k", ["x"], {}, "/", "/x")
    return KernelRecord(spec, owner, HERE, jupyter=jupyter)


def at(root, *paths):
    return {"root": root, "sessions": [{"path": path} for path in paths]}


@pytest.mark.parametrize(
    ("former", "jupyter", "claimant", "expected"),
    [
        (server("/home/u"), at("/home/u", "a.ipynb"), server("/home/u"), True),
        (server("/home/u"), at("/home/u", "p/a.ipynb"), server("/home/u/p"), True),
        (server("/home/u"), at("/home/u", "a.ipynb"), server("/home/u/p"), False),
        (server("/home/u/p"), at("/home/u/p", "a.ipynb"), server("/home/u"), True),
        (server("/home/u"), at("/home/u", "../v/a.ipynb"), server("/home/u"), False),
        (server("/home/u"), at("/home/u", "a.ipynb"), server("/home/user"), False),
        (server("/home/u"), at("/home/u", "a.ipynb", "p/b.ipynb"), server("/home/u/p"), True),
        (server("/home/u"), {}, server("/home/u/"), True),
        (server("/home/u"), {}, server("/home"), False),
        (server("/home/u"), {"sessions": "nonsense"}, server("/home/u"), True),
        (server("/h", "a"), at("/h", "a.ipynb"), server("/h", "a"), True),
        (server("/h", "a"), at("/h", "a.ipynb"), server("/h", "b"), False),
        (server("/h", kind=SCRIPT), at("/h", "a.ipynb"), server("/h"), False),
    ],
)
def test_a_kernel_belongs_to_the_server_that_shows_its_notebook(
    former, jupyter, claimant, expected
):
    assert belongs(record(former, jupyter), claimant) is expected
