"""Files that others may have created: the opening of regular files, and the refusal of everything else without waiting."""

import os

import pytest

from jupyter_gpuckpt.linux.foreign_files import open_regular


def test_only_files_are_opened(tmp_path):
    file, link, pipe = (tmp_path / name for name in ("file", "link", "pipe"))
    file.write_bytes(b"content")
    link.symlink_to(file)
    os.mkfifo(pipe)
    for path, follows_links in ((file, False), (link, True)):
        with os.fdopen(open_regular(path, follows_links=follows_links), "rb") as opened:
            assert opened.read() == b"content"
            assert not os.get_inheritable(opened.fileno())
    before = len(os.listdir("/proc/self/fd"))
    for path in (link, pipe, tmp_path, tmp_path / "missing"):
        with pytest.raises(OSError, match=path.name):
            open_regular(path)
    with pytest.raises(OSError, match="is not a file"):
        open_regular("/dev/null", follows_links=True)
    assert len(os.listdir("/proc/self/fd")) == before
