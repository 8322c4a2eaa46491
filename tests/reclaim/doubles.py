"""Doubles of metadata services: real HTTP servers in a thread, which answer as the providers' documentation says."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from contextlib import contextmanager
from email.utils import formatdate

from tornado.httpserver import HTTPServer
from tornado.testing import bind_unused_port
from tornado.web import Application, RequestHandler

#: An answer that never comes.
SILENCE = object()


class Double:
    """A server. `values`: by path, a body, a status, (status, headers, body), `SILENCE`, or a function of the handler."""

    #: How far its clock is ahead.
    ahead_seconds = 0.0

    def __init__(self):
        self.values = {}
        self.requests = []
        self.headers = []
        self.url = ""

    def prepare(self, handler):
        """Refuse a request that the real service would refuse."""

    def value(self, path):
        return self.values.get(path, 404)

    def count(self, path):
        return sum(request.endswith(path) for request in self.requests)

    def date(self, seconds):
        """Return a moment `seconds` from now on the server's clock, in seconds since the epoch."""
        return time.time() + self.ahead_seconds + seconds


class Aws(Double):
    SPOT = "/latest/meta-data/spot/instance-action"
    REBALANCE = "/latest/meta-data/events/recommendations/rebalance"
    MAINTENANCE = "/latest/meta-data/events/maintenance/scheduled"
    TOKEN = "/latest/api/token"

    def __init__(self):
        super().__init__()
        self.token = "first"

    def value(self, path):
        if path == self.TOKEN and path not in self.values:
            return self.token
        return super().value(path)

    def prepare(self, handler):
        headers = handler.request.headers
        if handler.request.path == self.TOKEN:
            is_right = handler.request.method == "PUT"
            is_right &= headers.get("X-aws-ec2-metadata-token-ttl-seconds") == "21600"
            return None if is_right else 400
        return None if headers.get("X-aws-ec2-metadata-token") == self.token else 401

    def announce(self, seconds, action="terminate"):
        when = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(self.date(seconds)))
        self.values[self.SPOT] = json.dumps({"action": action, "time": when})


class Gcp(Double):
    PREEMPTED = "/computeMetadata/v1/instance/preempted"
    MAINTENANCE = "/computeMetadata/v1/instance/maintenance-event"

    def __init__(self):
        super().__init__()
        self.current = {self.PREEMPTED: "FALSE", self.MAINTENANCE: "NONE"}

    def prepare(self, handler):
        return None if handler.request.headers.get("Metadata-Flavor") == "Google" else 403

    def value(self, path):
        if path in self.values or path not in self.current:
            return super().value(path)
        return self._wait_for_change

    async def _wait_for_change(self, handler):
        path, etag = handler.request.path, handler.get_query_argument("last_etag", "")
        end = time.monotonic() + float(handler.get_query_argument("timeout_sec", "0"))
        is_waiting = handler.get_query_argument("wait_for_change", "") == "true"
        while is_waiting and self._etag(path) == etag and time.monotonic() < end:
            if handler.is_gone:
                break
            await asyncio.sleep(0.01)
        headers = {"Metadata-Flavor": "Google", "ETag": self._etag(path)}
        return 200, headers, self.current[path]

    def _etag(self, path):
        return self.current[path].lower()


class Azure(Double):
    EVENTS = "/metadata/scheduledevents"
    NAME = "/metadata/instance/compute/name"

    def __init__(self, name="this-vm"):
        super().__init__()
        self.values[self.NAME] = name
        self.events = []
        self.values[self.EVENTS] = self._scheduled

    def prepare(self, handler):
        return None if handler.request.headers.get("Metadata") == "true" else 400

    def announce(self, event_id, kind, seconds=None, resources=("this-vm",)):
        when = "" if seconds is None else formatdate(self.date(seconds), usegmt=True)
        self.events.append(
            {
                "EventId": event_id,
                "EventType": kind,
                "ResourceType": "VirtualMachine",
                "Resources": list(resources),
                "EventStatus": "Scheduled" if when else "Started",
                "NotBefore": when,
                "Description": "",
                "EventSource": "Platform",
                "DurationInSeconds": -1,
            }
        )

    async def _scheduled(self, _handler):
        return 200, {}, json.dumps({"DocumentIncarnation": 1, "Events": self.events})


class _Handler(RequestHandler):
    is_gone = False

    def initialize(self, double):
        self.double = double

    def on_connection_close(self):
        self.is_gone = True

    async def _answer(self):
        double, request = self.double, self.request
        double.requests.append(f"{request.method} {request.path}")
        double.headers.append(request.headers)
        value = double.prepare(self) or double.value(request.path)
        if callable(value):
            value = await value(self)
        while value is SILENCE and not self.is_gone:  # noqa: ASYNC110 - ends with the connection
            await asyncio.sleep(0.01)
        if isinstance(value, int):
            value = (value, {}, "")
        status, headers, body = value if isinstance(value, tuple) else (200, {}, value)
        self.set_status(status)
        self.set_header("Date", formatdate(double.date(0), usegmt=True))
        for name, text in headers.items():
            self.set_header(name, text)
        if not self.is_gone:
            self.finish(body or None)

    get = put = post = _answer


@contextmanager
def serving(double):
    """Serve a double in a thread; its `url` is known then."""
    ready, loop = threading.Event(), asyncio.new_event_loop()

    def serve():
        asyncio.set_event_loop(loop)
        loop.run_until_complete(begin())
        ready.set()
        loop.run_forever()
        loop.run_until_complete(end())
        loop.close()

    async def begin():
        double.server = HTTPServer(Application([(".*", _Handler, {"double": double})]))
        listener, port = bind_unused_port()
        double.server.add_socket(listener)
        double.url = f"http://127.0.0.1:{port}"

    async def end():
        double.server.stop()
        await double.server.close_all_connections()
        left = asyncio.all_tasks() - {asyncio.current_task()}
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)

    thread = threading.Thread(target=serve)
    thread.start()
    ready.wait()
    try:
        yield double
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
