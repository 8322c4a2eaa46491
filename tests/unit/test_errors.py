"""Every error has a code, a status and an exit code, and survives the way across the process boundary."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

import jupyter_gpuckpt
from jupyter_gpuckpt.errors import GpuCkptError, error_from, record_of, subclasses
from jupyter_gpuckpt.wire.statuses import exit_code, http_status


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


def test_troubleshooting_has_a_cause_and_a_remedy_for_every_code() -> None:
    page = (Path(__file__).parents[2] / "docs" / "troubleshooting.md").read_text()
    entries = dict(re.findall(r"^#### `(\w+)`\n(.*?)(?=^#|\Z)", page, re.MULTILINE | re.DOTALL))
    codes = {kind.code for kind in subclasses()} | {record_of(ZeroDivisionError()).code}
    assert set(entries) == codes
    for code, entry in entries.items():
        assert "*Cause:* " in entry, code
        assert "*What to do:* " in entry, code


def failures_of_the_engine() -> list[tuple[str, ast.Call]]:
    """Every place in the package that makes a FreezeFailed or ThawFailed, which a user cannot act on without its cause."""
    return [
        (f"{path.name}:{node.lineno}", node)
        for path in sorted(Path(jupyter_gpuckpt.__file__).parent.rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id in {"FreezeFailed", "ThawFailed"}
    ]


def test_a_failed_freeze_or_thaw_always_has_details() -> None:
    places = failures_of_the_engine()
    without = [
        where for where, call in places if "details" not in {word.arg for word in call.keywords}
    ]
    assert len(places) > 15
    assert without == []
