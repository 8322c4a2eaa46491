"""Users' servers that harm the hub by what they answer, when it asks them to suspend their kernels."""

import asyncio
import gzip
import json
import logging
import time
from contextlib import suppress
from types import SimpleNamespace

import pytest
from jupyterhub.spawner import SimpleLocalProcessSpawner

from jupyter_gpuckpt.errors import GpuCkptError
from jupyter_gpuckpt.hub import server_request, with_suspend
from jupyter_gpuckpt.wire.hub_records import NAMED, USAGE, WAITING

MB = 1 << 20


async def served(answer, ask, *heads):
    """Return what `ask` returns for the URL of a server that sends these heads, and then what `answer` writes, which may not end."""
    ended = asyncio.Event()

    async def handle(reader, writer):
        await reader.readuntil(b"\r\n\r\n")
        writer.write("\r\n".join(["HTTP/1.1 200 OK", *heads, "", ""]).encode())
        with suppress(ConnectionError):  # the hub has hung up
            await answer(writer)
            await writer.drain()
        writer.close()
        ended.set()

    async with await asyncio.start_server(handle, "127.0.0.1", 0) as server:
        host, port = server.sockets[0].getsockname()
        try:
            return await ask(f"http://{host}:{port}/")
        finally:
            await asyncio.wait_for(ended.wait(), 60)


async def asked(answer, *heads, within=5.0):
    """Return the report of such a server."""
    return await served(
        answer, lambda url: server_request.suspend_all(within, url, ["token"]), *heads
    )


def answered(report):
    async def answer(writer):
        writer.write(json.dumps(report).encode())

    return answer


def test_an_answer_without_end_is_given_up():
    sent = 0

    async def endless(writer):
        nonlocal sent
        while True:
            writer.write(b" " * 65536)
            await writer.drain()
            sent += 65536

    with pytest.raises(GpuCkptError, match="too long"):
        asyncio.run(asked(endless))
    # What the sockets of both sides hold is written as well.
    assert sent < 30 * MB


def test_an_answer_that_never_ends_holds_up_no_stop(monkeypatch):
    monkeypatch.setattr(server_request, "_ANSWER_SECONDS", 0.5)
    monkeypatch.setattr(server_request, "_CONNECT_SECONDS", 0.5)

    async def trickle(writer):
        while True:
            writer.write(b" ")
            await writer.drain()
            await asyncio.sleep(0.05)

    began = time.monotonic()
    with pytest.raises(GpuCkptError, match="did not answer in time"):
        asyncio.run(asked(trickle, within=0.0))
    assert time.monotonic() - began < 60


def test_a_compressed_answer_is_not_unpacked():
    async def bomb(writer):
        writer.write(gzip.compress(b" " * (100 * MB) + b"{}"))

    with pytest.raises(GpuCkptError, match="status 200"):
        asyncio.run(asked(bomb, "Content-Encoding: gzip"))


def test_what_is_no_report_is_refused():
    for report in ([[[]]], {"kernels": [None]}, {"kernels": [{"saved": "yes"}]}):
        with pytest.raises(GpuCkptError, match="status 200"):
            asyncio.run(asked(answered(report)))


def test_a_refusal_of_the_numbers_says_nothing_of_suspends():
    with pytest.raises(GpuCkptError) as refused:
        asyncio.run(served(answered([]), lambda url: server_request.usage(url, ["token"])))
    assert refused.value.message == "The server's answer was: status 200"


def test_names_and_reasons_are_short_lines():
    long = "x" * 10_000
    report = {
        "kernels": [
            {"saved": True, "kernel_id": "1", "name": f"a\nERROR: forged\x1b[2J\u202e{long}"},
            {"saved": False, "kernel_id": long, "error": {"message": f"no\r\n{long}"}},
        ]
    }
    saved, failed = asyncio.run(asked(answered(report))).kernels
    assert saved.name.startswith("a ERROR: forged [2J xxx")
    for text in (saved.name, failed.kernel_id, failed.error.message):
        assert text.isprintable()
        assert len(text) <= 201


def test_sizes_and_times_are_possible_ones():
    report = {
        "kernels": [
            {"saved": True, "size_bytes": 10**18, "gpu_bytes": -1, "since": 1e300},
            {"saved": True, "size_bytes": 7, "gpu_bytes": 5, "since": 1000.0},
        ]
    }
    wrong, right = asyncio.run(asked(answered(report))).kernels
    assert (wrong.size_bytes, wrong.gpu_bytes) == (1 << 50, 0)
    assert wrong.since <= time.time()
    assert (right.size_bytes, right.gpu_bytes, right.since) == (7, 5, 1000.0)


@pytest.mark.parametrize("number", [-1, 1e300])
def test_numbers_of_the_disk_are_possible_ones(number):
    answer = answered({"disk_bytes": int(number)})
    usage = asyncio.run(served(answer, lambda url: server_request.usage(url, ["token"])))
    assert 0 <= usage.disk_bytes <= 1 << 50


def test_the_hub_remembers_and_logs_a_few_of_very_many_kernels(caplog):
    kernels = [
        {"saved": number % 2 == 0, "kernel_id": f"{number}", "name": f"{number}.ipynb"}
        for number in range(10_000)
    ]
    spawner = with_suspend("simple")(
        api_token="token", user=SimpleNamespace(name="eve", settings={})
    )
    spawner.log = logging.getLogger("hub")

    async def stop(url):
        spawner.server = SimpleNamespace(url=url)
        await spawner.stop()

    with caplog.at_level(logging.INFO, "hub"):
        asyncio.run(served(answered({"kernels": kernels}), stop))
    waiting = spawner.get_state()[WAITING]
    assert waiting["count"] == 5000
    names = [kernel["name"] for kernel in waiting["kernels"]]
    assert names == [f"{2 * number}.ipynb" for number in range(NAMED)]
    assert "5000 of 10000 kernels suspended" in caplog.text
    assert caplog.text.count("was not suspended: ") == 20
    assert caplog.records[-1].getMessage().endswith("4980 more were not.")


def polled(**settings):
    """Return the spawner of a server that runs."""

    class Running(SimpleLocalProcessSpawner):
        async def poll(self):
            return None

    user = SimpleNamespace(name="eve", settings=settings)
    return with_suspend(Running)(api_token="token", user=user)


def test_a_poll_does_not_wait_for_the_numbers():
    async def poll(url):
        spawner.server = SimpleNamespace(url=url)
        assert await spawner.poll_and_notify() is None
        was_polled.set()
        await spawner._usage_update
        return spawner.get_state()[USAGE]["disk_bytes"]

    async def answer(writer):
        await was_polled.wait()
        writer.write(b'{"disk_bytes": 7}')

    spawner, was_polled = polled(), asyncio.Event()
    assert asyncio.run(served(answer, poll)) == 7


@pytest.mark.parametrize("url", ["http://127.0.0.1:1/", "http://[/", "http://127.0.0.1:99999999/"])
@pytest.mark.parametrize("tls", [{}, {"internal_ssl": True, "internal_ssl_key": "/none"}])
def test_a_poll_never_fails_for_lack_of_numbers(url, tls, caplog):
    spawner = polled(internal_ssl_cert="/none", internal_ssl_ca="/none", **tls)
    spawner.log = logging.getLogger("hub")
    spawner.server = SimpleNamespace(url=url)

    async def poll():
        assert await spawner.poll_and_notify() is None
        await spawner._usage_update

    with caplog.at_level(logging.DEBUG, "hub"):
        asyncio.run(poll())
    assert "no numbers for hub-report" in caplog.text


def test_a_state_of_another_version_keeps_no_hub_from_starting():
    usage = {"at": 1.5, "disk_bytes": 7, "limit_bytes": 0}
    spawner = with_suspend("simple")()
    for waiting in ({"count": "many"}, ["a.ipynb"], None):
        spawner.load_state({WAITING: waiting, USAGE: usage})
        # What is not affected by it stays.
        assert spawner.get_state() == {USAGE: usage}
