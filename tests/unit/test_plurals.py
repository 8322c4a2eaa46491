"""Numbers of things in messages."""

import pytest

from jupyter_gpuckpt.wire.plurals import counted


@pytest.mark.parametrize(
    ("number", "text"), [(0, "0 kernels"), (1, "1 kernel"), (2, "2 kernels"), (21, "21 kernels")]
)
def test_a_noun_agrees_with_its_number(number, text):
    assert counted(number, "kernel") == text
