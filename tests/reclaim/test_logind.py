"""The system's shutdown waits for kernels: a real message bus, and a login manager that speaks as systemd's does."""

from __future__ import annotations

import logging
import os
import shutil
import socket
import subprocess
import threading

import jeepney
import pytest
from jeepney import DBusAddress, new_error, new_method_return, new_signal
from jeepney.io.blocking import open_dbus_connection

from jupyter_gpuckpt.daemon.reclaim import logind, notice_watch
from jupyter_gpuckpt.wire import calls
from jupyter_gpuckpt.wire.protocol import OwnerKind
from jupyter_gpuckpt.wire.reclaim_records import NoticeKind
from jupyter_gpuckpt.wire.states import KernelState
from tests.conftest import missing
from tests.daemon.conftest import *  # noqa: F403 - fixtures
from tests.reclaim.conftest import eventually, reading

CONFIG = """<!DOCTYPE busconfig PUBLIC "-//freedesktop//DTD D-Bus Bus Configuration 1.0//EN"
 "http://www.freedesktop.org/standards/dbus/1.0/busconfig.dtd">
<busconfig><type>system</type><listen>unix:path={folder}/bus</listen><auth>EXTERNAL</auth>
<policy context="default"><allow user="*"/><allow own="*"/><allow send_type="method_call"/><allow send_destination="*"/>
<allow receive_sender="*"/></policy></busconfig>"""


class LoginManager:
    """A double of systemd-logind. `waiting`: the ends of pipes that it holds; readable when their holders let go."""

    def __init__(self, address, *, refuses=False):
        self._bus = open_dbus_connection(address, enable_fds=True)
        self._bus.bus_proxy.RequestName("org.freedesktop.login1")
        self.address = DBusAddress(
            "/org/freedesktop/login1", interface="org.freedesktop.login1.Manager"
        )
        self.waiting, self.asked = [], []
        self.refuses, self.refused = refuses, 0
        self._is_over = False
        self._thread = threading.Thread(target=self._answer)
        self._thread.start()

    def _answer(self):
        while not self._is_over:
            try:
                message = self._bus.receive(timeout=0.02)
            except TimeoutError:
                continue
            member = message.header.fields.get(jeepney.HeaderFields.member)
            if self.refuses and member == "Inhibit":
                self.refused += 1
                self._bus.send(new_error(message, "org.freedesktop.DBus.Error.AccessDenied"))
            elif member == "Inhibit":
                self.asked.append(message.body)
                ours, theirs = os.pipe()
                self.waiting.append(ours)
                self._bus.send(new_method_return(message, "h", (theirs,)))
                os.close(theirs)
            elif member == "Get":
                assert message.body == ("org.freedesktop.login1.Manager", "InhibitDelayMaxUSec")
                self._bus.send(new_method_return(message, "v", (("t", 5_000_000),)))

    def prepare(self, begins):
        self._bus.send(new_signal(self.address, "PrepareForShutdown", "b", (begins,)))

    def is_waiting(self):
        """Whether somebody delays the shutdown."""
        for descriptor in self.waiting:
            os.set_blocking(descriptor, False)
            try:
                os.read(descriptor, 1)
            except BlockingIOError:
                return True
        return False

    def close(self):
        self._is_over = True
        self._thread.join()
        self._bus.close()
        for descriptor in self.waiting:
            os.close(descriptor)


def listens(path):
    """Whether a unix socket accepts connections."""
    with socket.socket(socket.AF_UNIX) as client:
        return client.connect_ex(str(path)) == 0


@pytest.fixture
def bus(tmp_path_factory, monkeypatch):
    folder = tmp_path_factory.mktemp(
        "bus"
    )  # not below that of the daemon, which ends all that names it
    program = shutil.which("dbus-daemon")
    if program is None:
        missing("dbus", "there is no dbus-daemon: apt-get install dbus-daemon")
    (folder / "bus.conf").write_text(CONFIG.format(folder=folder))
    daemon = subprocess.Popen(
        [program, f"--config-file={folder}/bus.conf", "--nofork"], stdin=subprocess.DEVNULL
    )
    address = f"unix:path={folder}/bus"
    eventually(lambda: listens(folder / "bus"))
    monkeypatch.setenv("DBUS_SYSTEM_BUS_ADDRESS", address)
    monkeypatch.setattr(logind, "FIRST_PAUSE_SECONDS", 0.01)
    monkeypatch.setattr(logind, "MAX_PAUSE_SECONDS", 0.05)
    monkeypatch.setattr(logind, "_LOOK_SECONDS", 0.02)
    yield address
    daemon.kill()
    daemon.wait()


@pytest.fixture
def manager(bus):
    made = LoginManager(bus)
    yield made
    made.close()


@pytest.fixture
def source():
    return logind.Shutdowns()


@pytest.fixture
def found(source):
    class NoEndpoint:
        def close(self):
            pass

    with reading(lambda: (NoEndpoint(), [source])) as reader:
        yield reader
    eventually(lambda: not [one for one in threading.enumerate() if one.name == "logind"])


def test_a_shutdown_is_delayed_until_kernels_are_safe(manager, source, found, left):
    eventually(lambda: manager.asked)
    assert [asked[0::3] for asked in manager.asked] == [("shutdown", "delay")]
    assert manager.is_waiting()
    manager.prepare(True)
    (notice,) = found.until(1)
    assert (notice.kind, notice.disk_survives) == (NoticeKind.SHUTDOWN, True)
    assert 4 < left(notice) <= 5
    assert manager.is_waiting()
    source._release()
    eventually(lambda: not manager.is_waiting())


def test_a_shutdown_that_is_called_off_is_withdrawn_and_the_next_one_is_delayed(
    manager, source, found
):
    eventually(lambda: manager.asked)
    manager.prepare(True)
    (first,) = found.until(1)
    manager.prepare(False)
    withdrawn = found.until(2)[1]
    assert (withdrawn.id, withdrawn.withdrawn) == (first.id, True)
    eventually(lambda: len(manager.asked) == 2)
    assert manager.is_waiting()
    manager.prepare(True)
    assert found.until(3)[2].id != first.id


def test_a_login_manager_that_refuses_or_ends_is_asked_again(bus, found, caplog):
    caplog.set_level(logging.INFO)
    eventually(lambda: "NameHasNoOwner" in caplog.text)
    first = LoginManager(bus, refuses=True)
    eventually(lambda: first.refused >= 2)
    first.close()
    second = LoginManager(bus)
    try:
        eventually(lambda: second.asked)
        second.prepare(True)
        found.until(1)
    finally:
        second.close()


def test_only_the_login_manager_is_believed(bus, manager, found):
    eventually(lambda: manager.asked)
    with open_dbus_connection(bus) as another:
        another.send(new_signal(manager.address, "PrepareForShutdown", "b", (True,)))
        # The bus answers in order, so it has passed the signal on by then.
        another.bus_proxy.GetId()
    manager.prepare(False)
    manager.prepare(True)
    assert found.until(1)[0].id.endswith(":1")


def test_the_daemon_lets_a_shutdown_go_on_when_kernels_are_suspended(
    manager, client, owner_of, spec, counts
):
    with owner_of(client, OwnerKind.SCRIPT) as script:
        kernel = client.send(calls.launch(script.owner_id, spec()))
        eventually(lambda: counts(kernel.kernel_id))
        eventually(lambda: manager.asked)
        manager.prepare(True)
        eventually(lambda: not manager.is_waiting())
        assert client.send(calls.kernel(kernel.kernel_id)).state is KernelState.SUSPENDED
        manager.prepare(False)
        eventually(lambda: client.send(calls.kernel(kernel.kernel_id)).state is KernelState.RUNNING)
        assert manager.is_waiting()


def test_without_a_bus_nothing_is_looked_for(tmp_path):
    assert not notice_watch.has_system_bus({}, tmp_path / "missing")
    assert notice_watch.has_system_bus({"DBUS_SYSTEM_BUS_ADDRESS": "unix:path=/somewhere"})
