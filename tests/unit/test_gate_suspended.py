"""What pages and extensions ask a suspended kernel is answered at once, and nothing of it resumes the kernel."""

import asyncio

import pytest

from tests.unit.gate_scene import Scene

#: By channel.
REQUESTS = {
    "shell": ["history_request", "is_complete_request", "complete_request", "inspect_request"],
    "control": [
        "create_subshell_request",
        "debug_request",
        "interrupt_request",
        "kernel_info_request",
        "list_subshell_request",
        "shutdown_request",
        "usage_request",
        "of_some_extension_request",
    ],
}


async def answered(scene, request):
    """Return the reply to a request and the statuses about it."""
    await scene.settle()
    mine = [m for m in scene.page.received if m["parent_header"].get("msg_id") == request]
    statuses = [m["content"]["execution_state"] for m in mine if m["msg_type"] == "status"]
    return [m for m in mine if m["msg_type"].endswith("_reply")], statuses


@pytest.fixture
def scene(tmp_path):
    return Scene(tmp_path, is_new=False)


def test_every_request_but_a_cell_is_answered_while_the_kernel_is_suspended(scene):
    async def run():
        await scene.begin()
        scene.kernel.reply()
        await scene.suspend_begins()
        # What came too late for the kernel is answered when it is suspended.
        early = scene.page.ask("usage_request", "control")
        assert await answered(scene, early) == ([], [])
        await scene.suspend_ends()
        assert (await answered(scene, early))[0][0]["content"]["status"] == "error"
        for channel, kinds in REQUESTS.items():
            for kind in kinds:
                (reply,), statuses = await answered(scene, scene.page.ask(kind, channel))
                assert reply["msg_type"] == kind.replace("_request", "_reply")
                assert reply["channel"] == channel
                assert statuses == ["busy", "idle"]
                if channel == "control" and kind != "kernel_info_request":
                    assert reply["content"]["status"] == "error"
                    assert "suspended" in reply["content"]["evalue"]
        assert scene.woken == []
        scene.check()
        await scene.resume()
        await scene.settle()
        (reply,), _ = await answered(scene, scene.page.ask("usage_request", "control"))
        assert reply["content"]["status"] == "ok"
        scene.output.discard()

    asyncio.run(run())


def test_what_follows_a_cell_that_resumes_the_kernel_is_answered_by_the_kernel(scene):
    async def run():
        await scene.begin()
        scene.kernel.reply()
        await scene.suspend_begins()
        await scene.suspend_ends()
        cell = scene.page.ask("execute_request", code="")
        assert scene.woken
        scene.served.is_wanted = True  # as `policies/waking.py` does
        asked = scene.page.ask("history_request")
        assert await answered(scene, asked) == ([], [])
        await scene.resume()
        await scene.settle()
        scene.kernel.reply()
        await scene.settle()
        assert len(scene.page.replies(cell)) == 1
        scene.output.discard()

    asyncio.run(run())
