"""The exit code of a kernel, as its provisioner reads it."""

import pytest
from gpuckpt_provisioner.exit_status import KILLED, exit_code


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("0\n", 0),
        ("256\n", 1),
        ("9\n", -9),
        # init could not write into it, because the disk was full
        ("", KILLED),
        ("nonsense", None),
    ],
)
def test_the_file_has_the_wait_status(tmp_path, text, code):
    (tmp_path / "exit").write_text(text)
    assert exit_code(str(tmp_path / "exit")) == code


def test_without_a_file_the_kernel_runs(tmp_path):
    assert exit_code(str(tmp_path / "exit")) is None
    assert exit_code("") is None
