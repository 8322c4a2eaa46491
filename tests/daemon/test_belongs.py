"""Which kernels of a dead server a new server may claim."""

import pytest

from jupyter_gpuckpt.daemon.kernels.kernel_records import KernelRecord
from jupyter_gpuckpt.daemon.kernels.owners import belongs
from jupyter_gpuckpt.wire.deadlines import Deadline
from jupyter_gpuckpt.wire.manifest_records import LaunchSpec
from jupyter_gpuckpt.wire.place import Place
from jupyter_gpuckpt.wire.protocol import Owner, OwnerKind

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
        (server("/srv/u"), at("/srv/u", "a.ipynb"), server("/srv/u"), True),
        (server("/srv/u"), at("/srv/u", "p/a.ipynb"), server("/srv/u/p"), True),
        (server("/srv/u"), at("/srv/u", "a.ipynb"), server("/srv/u/p"), False),
        (server("/srv/u/p"), at("/srv/u/p", "a.ipynb"), server("/srv/u"), True),
        (server("/srv/u"), at("/srv/u", "../v/a.ipynb"), server("/srv/u"), False),
        (server("/srv/u"), at("/srv/u", "a.ipynb"), server("/srv/user"), False),
        (server("/srv/u"), at("/srv/u", "a.ipynb", "p/b.ipynb"), server("/srv/u/p"), True),
        (server("/srv/u"), {}, server("/srv/u/"), True),
        (server("/srv/u"), {}, server("/srv"), False),
        (server("/srv/u"), {"sessions": "nonsense"}, server("/srv/u"), True),
        (server("/h", "a"), at("/h", "a.ipynb"), server("/h", "a"), True),
        (server("/h", "a"), at("/h", "a.ipynb"), server("/h", "b"), False),
        (server("/h", kind=SCRIPT), at("/h", "a.ipynb"), server("/h"), False),
    ],
)
def test_a_kernel_belongs_to_the_server_that_shows_its_notebook(
    former, jupyter, claimant, expected
):
    assert belongs(record(former, jupyter), claimant) is expected


def test_one_that_its_user_has_shut_down_belongs_to_nobody():
    kept = record(server("/a"), {})
    assert belongs(kept, server("/a"))
    kept.ends = Deadline(1.0)
    assert not belongs(kept, server("/a"))
