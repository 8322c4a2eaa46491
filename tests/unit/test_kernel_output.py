"""Output that no page has received is kept until one has it for certain; a page that soon leaves has received nothing."""

import asyncio

import pytest
from jupyter_client.session import Session

from jupyter_gpuckpt.server.messages.output import KernelOutput
from tests.conftest import wait_for
from tests.full_disks import empty, fill, small_disk

SESSION = Session(key=b"key")


class Page:
    """A page that records the text of what it is sent."""

    def __init__(self, client_session):
        self.client_session, self.texts = client_session, []

    def show(self, parts):
        self.texts.append(text_of(parts))

    def show_again(self, parts):
        self.texts.append(text_of(parts))

    def show_text(self, text):
        self.texts.append(text)


def text_of(parts):
    content = SESSION.unpack(parts[parts.index(b"<IDS|MSG>") + 5])
    return content.get("text", content.get("execution_state"))


def message(kind, parent, **content):
    return SESSION.serialize(SESSION.msg(kind, content, parent))


async def published(output, request, text):
    """Let the kernel run a cell that prints."""
    output.feed(message("status", request, execution_state="busy"))
    output.feed(message("stream", request, name="stdout", text=text))
    output.feed(message("status", request, execution_state="idle"))


async def joined(output, client_session):
    page = Page(client_session)
    output.join(page)
    await output._joining[page]
    return page


@pytest.fixture
def disk(tmp_path):
    with small_disk(tmp_path / "disk", tmp_path / "image", megabytes=4) as mounted:
        yield mounted


@pytest.fixture
def output(tmp_path, monkeypatch):
    monkeypatch.setattr("jupyter_gpuckpt.server.messages.output.SETTLED_SECONDS", 0.3)
    output = KernelOutput(tmp_path / "kept", 1_000_000)
    yield output
    output.discard()


def test_a_page_that_leaves_soon_takes_nothing_with_it(output):
    async def run():
        request = SESSION.msg("execute_request", {})
        await published(output, request, "kept")
        short = await joined(output, "short")
        assert "kept" in short.texts
        # A thread of the kernel prints while only that page is there.
        output.feed(message("stream", request, name="stdout", text="later"))
        output.leave(short)
        page = await joined(output, "page")
        assert page.texts[-4:] == ["busy", "kept", "idle", "later"]

    asyncio.run(run())


def test_a_page_that_stays_has_received_it(output, tmp_path):
    async def run():
        await published(output, SESSION.msg("execute_request", {}), "kept")
        await joined(output, "page")
        assert (tmp_path / "kept").exists()
        await asyncio.to_thread(wait_for, lambda: not (tmp_path / "kept").exists())
        assert (await joined(output, "another")).texts == []

    asyncio.run(run())


def test_a_page_that_comes_back_has_received_it_at_once(output, tmp_path):
    async def run():
        page = await joined(output, "page")
        output.leave(page)
        await published(output, SESSION.msg("execute_request", {}), "kept")
        assert (await joined(output, "page")).texts == ["busy", "kept", "idle"]
        assert not (tmp_path / "kept").exists()

    asyncio.run(run())


def test_what_a_kernel_says_when_it_starts_is_shown_once(output, tmp_path):
    async def run():
        output.feed(message("status", {}, execution_state="starting"))
        assert (await joined(output, "page")).texts == ["starting"]
        assert not (tmp_path / "kept").exists()

    asyncio.run(run())


def test_every_message_reaches_pages_while_the_disk_is_full(disk):
    output = KernelOutput(disk / "kept", 1_000_000)

    async def run():
        here = await joined(output, "here")
        for text in ("one", "two", "three"):  # what was kept is cleared after each
            await published(output, SESSION.msg("execute_request", {}), text)
            fill(disk)
        assert [text for text in here.texts if text in ("one", "two", "three")] == [
            "one",
            "two",
            "three",
        ]
        # Nobody is there: on the disk, in memory, and on the disk again.
        output.leave(here)
        empty(disk)
        request = SESSION.msg("execute_request", {})
        output.feed(message("status", request, execution_state="busy"))
        output.feed(message("stream", request, name="stdout", text="a" * 10_000))
        fill(disk)
        output.feed(message("stream", request, name="stdout", text="b" * 10_000))
        assert output.description()["left_out"] == 1
        late = await joined(output, "late")
        assert [text[0] for text in late.texts] == ["b", "a", "b"]
        output.leave(late)
        empty(disk)
        output.feed(message("stream", request, name="stdout", text="c"))
        assert output.description()["left_out"] == 0
        output.close()
        # The next server has all of it.
        next_output = KernelOutput(disk / "kept", 1_000_000)
        next_output.load(output.description())
        later = await joined(next_output, "later")
        assert [text[0] for text in later.texts] == ["b", "a", "b", "c"]
        next_output.discard()

    asyncio.run(run())
