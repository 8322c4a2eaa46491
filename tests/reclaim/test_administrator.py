"""Tests of notices from an administrator's program, which prints them, and URL, which lists them."""

from __future__ import annotations

import asyncio
import json
import shlex
import sys
from contextlib import aclosing
from email.utils import formatdate

import psutil
import pytest

from jupyter_gpuckpt.daemon.reclaim import administrator, notice_watch
from jupyter_gpuckpt.daemon.reclaim.administrator import CommandNotices, UrlNotices
from jupyter_gpuckpt.daemon.reclaim.endpoints import Endpoint
from tests.conftest import PATIENCE
from tests.documented import block
from tests.reclaim import doubles
from tests.reclaim.conftest import PACE, eventually, reading


def first(command, count):
    """Return the first `count` notices of a program."""

    async def read():
        async with asyncio.timeout(PATIENCE), aclosing(command.notices()) as notices:
            return [await anext(notices) for _ in range(count)]

    return asyncio.run(read())


def program(tmp_path, text):
    path = tmp_path / "notices.py"
    path.write_text(text)
    return CommandNotices(shlex.join([sys.executable, str(path)]), PACE)


def test_a_program_prints_notices(tmp_path, left, caplog):
    command = program(
        tmp_path,
        "import sys, time\n"
        "print('hello', flush=True)\n"
        """print('{"id": "a", "within_seconds": 90, "disk_survives": true}', flush=True)\n"""
        """print('{"id": "a", "withdrawn": true}', flush=True)\n"""
        "time.sleep(1000)\n",
    )
    notice, withdrawn = first(command, 2)
    assert (notice.id, notice.disk_survives) == ("command:a", True)
    assert 80 < left(notice) <= 90
    assert (withdrawn.id, withdrawn.withdrawn) == ("command:a", True)
    assert "is not understood" in caplog.text
    assert not [
        one for one in psutil.process_iter(["cmdline"]) if str(tmp_path) in str(one.info["cmdline"])
    ], "it is ended with the daemon"


def test_the_lines_of_the_documentation_are_understood(tmp_path, left, caplog):
    lines = block("reclaim.md", "json", '"withdrawn"')
    text = f"print({lines!r}, flush=True)\nimport time\ntime.sleep(1000)"
    notice, withdrawn = first(program(tmp_path, text), 2)
    assert (notice.id, notice.disk_survives) == ("command:maintenance-7", True)
    assert 110 < left(notice) <= 120
    assert (withdrawn.id, withdrawn.withdrawn) == ("command:maintenance-7", True)
    assert not caplog.records


def test_a_program_that_ends_is_started_again(tmp_path, caplog):
    text = """print('{"id": "a", "within_seconds": 90}')"""
    assert len(first(program(tmp_path, text), 3)) == 3
    assert "started again" in caplog.text


def test_a_line_without_an_end_is_not_kept(tmp_path, monkeypatch):
    monkeypatch.setattr(administrator, "_MAX_LINE_BYTES", 1000)
    text = f"""
import os
path = {str(tmp_path / "again")!r}
if os.path.exists(path):
    print('{{"id": "a", "within_seconds": 90}}')
open(path, "w")
print("x" * 1_000_000)
"""
    assert len(first(program(tmp_path, text), 1)) == 1


def test_a_program_that_is_not_there_is_said_once(caplog):
    async def read():
        command = CommandNotices("/nonexistent/program", PACE)
        async with aclosing(command.notices()) as notices:
            reader = asyncio.ensure_future(anext(notices))
            done, _ = await asyncio.wait({reader}, timeout=0.5)
            assert not done
            reader.cancel()
            await asyncio.wait({reader})

    asyncio.run(read())
    assert len([one for one in caplog.messages if "/nonexistent/program" in one]) == 1


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("https://example.org:8443/notices?zone=1", True),
        ("ftp://example.org/secret", False),
        ("http:///secret", False),
        ("http://example.org:port/secret", False),
        ("http://[secret", False),
        ("https://user:secret@example.org/", False),
    ],
)
def test_a_url_that_cannot_be_used_is_said_to_be_without_its_secrets(text, expected, caplog):
    assert notice_watch.is_usable(text) is expected
    assert bool(caplog.messages) is not expected
    assert "secret" not in caplog.text


@pytest.fixture
def url():
    with doubles.serving(doubles.Double()) as double:
        yield double


@pytest.fixture
def read_url(url):
    def make():
        endpoint = Endpoint(f"{url.url}/notices")
        return endpoint, [UrlNotices(endpoint, PACE)]

    with reading(make) as found:
        yield found


def test_the_list_of_the_documentation_is_understood(url, read_url):
    url.values["/notices"] = block("reclaim.md", "json", '"notices"')
    (notice,) = read_url.until(1)
    assert notice.id == "url:maintenance-7"


def test_a_url_lists_notices(url, read_url, left):
    eventually(lambda: url.count("/notices") >= 2)
    url.ahead_seconds = 5000.0
    given = {"id": "a", "deadline": formatdate(url.date(90), usegmt=True)}
    url.values["/notices"] = json.dumps({"notices": [given]})
    (notice,) = read_url.until(1)
    assert 85 < left(notice) < 92
    second = {"id": "b", "within_seconds": 60, "disk_survives": True}
    url.values["/notices"] = json.dumps({"notices": [given, second]})
    assert read_url.until(2)[1].disk_survives
    before = url.count("/notices")
    eventually(lambda: url.count("/notices") >= before + 3)
    read_url.until(2)  # the remaining time counts from the first sight
    url.values["/notices"] = 204
    assert {one.id for one in read_url.until(4)[2:]} == {"url:a", "url:b"}
    assert all(one.withdrawn for one in read_url.notices[2:])
