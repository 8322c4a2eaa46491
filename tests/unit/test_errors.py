"""Every error has a code, a status and an exit code, and survives the way across the process boundary."""

from __future__ import annotations

import pytest

from jupyter_gpuckpt.errors import GpuCkptError, error_from, record_of, subclasses
from jupyter_gpuckpt.protocol import exit_code, http_status


def test_codes_are_unique() -> None:
    codes = [kind.code for kind in subclasses()]
    assert len(codes) == len(set(codes))


@pytest.mark.parametrize("kind", subclasses())
def test_every_error_resolves_in_the_one_table(kind: type[GpuCkptError]) -> None:
    assert 400 <= http_status(kind) < 600
    assert 0 < exit_code(kind) < 64


@pytest.mark.parametrize("kind", subclasses())
def test_every_error_comes_back_as_its_own_class(kind: type[GpuCkptError]) -> None:
    error = error_from(record_of(kind("It failed.", hint="Do this.", details="log")))
    assert type(error) is kind
    assert (error.message, error.hint, error.details) == ("It failed.", "Do this.", "log")


def test_a_foreign_exception_becomes_an_internal_error_with_a_hint() -> None:
    record = record_of(ZeroDivisionError("division by zero"))
    assert record.code == "internal"
    assert "ZeroDivisionError" in record.message
    assert record.hint
