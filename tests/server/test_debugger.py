"""A kernel that is being debugged is so after a suspend as well."""

import pytest

CODE = "x = 1\ny = x + 1\nprint(y)"


@pytest.fixture
def server(clean_server):
    return clean_server


class Debugger:
    """What JupyterLab's debugger asks a kernel."""

    def __init__(self, page):
        self.page, self._count = page, 0

    def ask(self, command, **arguments):
        self._count += 1
        content = {"type": "request", "command": command, "seq": self._count}
        request = self.page.send("debug_request", {**content, "arguments": arguments}, "control")
        reply = self.page.wait_for(
            lambda m: (
                m["msg_type"] == "debug_reply" and m["parent_header"].get("msg_id") == request
            ),
        )["content"]
        assert reply.get("success", True), reply
        return reply.get("body", {})

    def attach(self):
        self.ask(
            "initialize",
            clientID="test",
            adapterID="",
            pathFormat="path",
            linesStartAt1=True,
            columnsStartAt1=True,
        )
        self.ask("attach")

    def break_at(self, line):
        source = {"path": self.ask("dumpCell", code=CODE)["sourcePath"]}
        return self.ask("setBreakpoints", source=source, breakpoints=[{"line": line}])

    def stops(self):
        """Run the cell up to the breakpoint, look at a variable there, and let it run on; what it prints."""
        before = len(self.page.received)
        request = self.page.execute(CODE)
        stopped = self.page.wait_for(
            lambda m: (
                m in self.page.received[before:]
                and m["msg_type"] == "debug_event"
                and m["content"]["event"] == "stopped"
            ),
        )
        thread = stopped["content"]["body"]["threadId"]
        frame = self.ask("stackTrace", threadId=thread)["stackFrames"][0]
        assert frame["line"] == 2
        assert self.ask("evaluate", expression="x", frameId=frame["id"])["result"] == "1"
        self.ask("continue", threadId=thread)
        return self.page.output(request)


def test_breakpoints_stay_and_the_debugger_goes_on_answering(server):
    page = server.open()
    page.run("pass")
    debugger = Debugger(page)
    debugger.attach()
    debugger.break_at(2)
    assert debugger.stops() == "2\n"
    for _ in range(2):
        server.do("suspend", page.kernel_id)
        server.do("resume", page.kernel_id)
        breakpoints = debugger.ask("debugInfo")["breakpoints"]
        assert [point["breakpoints"] for point in breakpoints] == [[{"line": 2}]]
        assert debugger.stops() == "2\n"
