"""A spawner that suspends all kernels of a server before it stops it, and reports them at the next start.

Covers: any stop (by a user, an administrator, the idle culler, the hub's own exit), and the messages on the hub's pages. Does not
cover: resuming the kernels; the next server lists them by itself.
"""
# jupyterhub carries no types:
# mypy: allow-untyped-calls, allow-untyped-decorators

from __future__ import annotations

import asyncio
import json
import math
import ssl
import time
from collections.abc import AsyncIterator, Generator, Iterator
from contextlib import closing
from html import escape
from importlib import metadata
from typing import TYPE_CHECKING, Any

import msgspec
from jupyterhub import orm
from jupyterhub.spawner import LocalProcessSpawner
from jupyterhub.utils import make_ssl_context, maybe_future
from traitlets import Bool, Dict, Float, Int, default
from traitlets.config import LoggingConfigurable
from traitlets.utils.importstring import import_item

from ..errors import ConfigurationError, GpuCkptError
from ..linux.control_groups import processors
from ..wire import daemon_settings
from ..wire.hub_records import (
    SET_ASIDE,
    STOP_MARGIN_SECONDS,
    USAGE,
    WAITING,
    SpawnerState,
    Usage,
    Waiting,
    WaitingKernel,
)
from ..wire.plurals import age, counted, size
from . import server_request
from .server_request import Report
from .start_check import check_at_start
from .turns import Turns

#: The most notebooks that are named in a message.
_IN_MESSAGE = 5
#: The field of the form before a start, and its value for a start without the suspended sessions.
FIELD, CLEAN = "gpuckpt_start", "clean"


_Base: Any
if TYPE_CHECKING:
    _Base = object
else:
    _Base = LoggingConfigurable

#: The environment variable by which a server starts without the sessions of earlier ones (`GpuCkptServer.clean_start`).
_CLEAN_START = "JUPYTER_GPUCKPT_CLEAN_START"
#: The lifetime of a token for one request, beyond the longest duration of the request.
_TOKEN_SECONDS = 60
#: The most failures of one stop in the hub's log.
_LOGGED = 20
#: The part of `suspend_timeout` after which the suspend of a server begins even if others have not ended.
_LONGEST_WAIT = 0.5

#: The time after which the hub requests the numbers of a running server anew for `jupyter gpuckpt hub-report`.
_REPORT_SECONDS = 600.0

#: The turns of the servers on the hub's machine.
_turns = Turns()


def waiting_message(waiting: Waiting) -> str:
    """Return a text like `3 suspended sessions are waiting: a.ipynb, b.ipynb, c.ipynb`."""
    names = [kernel.name for kernel in waiting.kernels[:_IN_MESSAGE]]
    shown = ", ".join(names) + ", ..." * (waiting.count > len(names))
    sessions = "session is" if waiting.count == 1 else "sessions are"
    return f"{waiting.count} suspended {sessions} waiting: {shown}"


def start_form(waiting: Waiting, now: float) -> str:
    """Return the part of a form that lists the sessions and asks how to start, as HTML for JupyterHub's page."""
    rows = "".join(_row(kernel, now) for kernel in waiting.kernels)
    more = waiting.count - len(waiting.kernels)
    rest = f"<p>And {more} more.</p>" if more else ""
    return (
        '<fieldset><legend>Suspended sessions</legend><table class="table"><thead><tr><th>Notebook</th><th>Memory</th>'
        f"<th>GPU memory</th><th>Suspended</th></tr></thead><tbody>{rows}</tbody></table>{rest}"
        + _choice(
            "list", "List them", "Run a cell in a notebook to resume its kernel.", checked=True
        )
        + _choice(
            CLEAN,
            "Clean start",
            "They stay suspended until you start the server with <b>List them</b>.",
        )
        + "</fieldset>"
    )


def _row(kernel: WaitingKernel, now: float) -> str:
    cells = [
        escape(kernel.name),
        size(kernel.size_bytes) if kernel.size_bytes else "",
        size(kernel.gpu_bytes) if kernel.gpu_bytes else "",
        age(now - kernel.since) if kernel.since else "",
    ]
    return f"<tr>{''.join(f'<td>{cell}</td>' for cell in cells)}</tr>"


def _choice(value: str, label: str, explanation: str, *, checked: bool = False) -> str:
    """Return a radio button with its label."""
    mark = " checked" * checked
    return (
        f'<div class="form-check"><input class="form-check-input" type="radio" name="{FIELD}" id="{FIELD}-{value}"'
        f' value="{value}"{mark}><label class="form-check-label" for="{FIELD}-{value}"><b>{label}.</b> {explanation}</label></div>'
    )


def _rules_environment(retention: dict[str, float], disk_limit: int) -> dict[str, str]:
    """Return the variables by which servers get the rules; automatic snapshots beyond the limit are removed, unless a rule has another.

    They are advice: a user's own configuration has precedence, and the volume's or the bucket's quota is what enforces a limit.
    """
    rules = ({"max_bytes": disk_limit} if disk_limit else {}) | retention
    return {daemon_settings.RETENTION_VARIABLE: json.dumps(rules)} if rules else {}


def _check_retention(retention: dict[str, float]) -> None:
    """Raise ConfigurationError for rules that servers would ignore."""
    try:
        daemon_settings.require_retention(retention)
    except ConfigurationError as error:
        raise ConfigurationError(
            f"c.GpuCkptSpawnerMixin.retention is not valid: {error.message}", hint=error.hint
        ) from error


def exceeds(usage: Usage) -> bool:
    """Return whether a user's snapshots take more than the limit."""
    return 0 < usage.limit_bytes < usage.disk_bytes


def exceeded(usage: Usage) -> str:
    """Return a sentence for a user whose snapshots take more than the limit; an empty string for others."""
    if not exceeds(usage):
        return ""
    return (
        f"Your snapshots take {size(usage.disk_bytes)} on the disk; your limit is {size(usage.limit_bytes)}."
        " Please delete some that you do not need."
    )


class GpuCkptSpawnerMixin(_Base):  # type: ignore[misc] # another base when it runs
    """A mixin to put before any spawner class: `class Mine(GpuCkptSpawnerMixin, DockerSpawner): ...`."""

    suspend_before_stop = Bool(
        True,
        help="""Whether the kernels of a server are suspended before it is stopped. The next start of the server lists them
        again; a cell brings them back.""",
    ).tag(config=True)

    suspend_timeout = Float(
        60.0,
        min=0.0,
        help="""Seconds that suspending all kernels of a server may take together. After that the server is stopped in any case.
        Smaller kernels are saved before larger ones.""",
    ).tag(config=True)

    suspends_at_once = Int(
        min=0,
        help="""The number of servers whose kernels are suspended at the same time. Others wait, at most for half of `suspend_timeout`,
        which includes the wait. With too many at once a stop of many servers may end in time for none of them. 0: no limit. The
        default is the number of processors if servers run on the hub's machine, else 0.""",
    ).tag(config=True)

    #: The text on the hub's page about the stop while kernels are being suspended (templates/stop_pending.html).
    suspending_message = ""
    offer_clean_start = Bool(
        False,
        help="""Whether the page before a server's start lists the suspended sessions, with their sizes and ages, and offers a clean
        start: the sessions then stay suspended until a later start. Off: the server starts at once and lists its sessions.""",
    ).tag(config=True)

    retention = Dict(
        help="""The defaults of servers for how long snapshots are kept: `{"keep_last": 2, "keep_suspends": 5, "keep_within": 86400,
        "max_bytes": 20_000_000_000}`, or some of these (c.GpuCkptDaemon.keep_last and so on). keep_suspends is for suspends by hand; the
        others are for automatic snapshots. A user's own configuration has precedence."""
    ).tag(config=True)

    disk_limit = Int(
        0,
        min=0,
        help="""Bytes that the snapshots of a user should take at most on the disk; a hook may set another for a user. Beyond it servers
        remove automatic snapshots, unless `retention` has another max_bytes; the page of the start and the hub's log say so, and
        `hub-report` lists it. It does not prevent a save: that is the work of a quota of the volume. 0: no limit.""",
    ).tag(config=True)

    #: What waits for the next server, or what the running server listed at its start (`_started_again`). It survives `clear_state`, which
    #: the hub calls in between.
    _waiting = Waiting()
    _started_again = False
    #: What the running server does not list, because its user chose a clean start.
    _set_aside = Waiting()
    #: Whether the present start, or the last one, is a clean start.
    _starts_clean = False
    #: The numbers for `hub-report`, and when they were requested, in seconds since the epoch.
    _usage = Usage()
    _usage_asked_at = float("-inf")
    _usage_update: asyncio.Task[None] | None = None

    @default("suspends_at_once")
    def _default_suspends_at_once(self) -> int:
        return processors() if self.is_on_this_machine() else 0

    async def stop(self, now: bool = False) -> None:
        """Suspend the kernels, then stop the server, even if suspending fails."""
        if self.suspend_before_stop and not now:
            self.suspending_message = (
                "The notebooks' sessions are being saved; you find them again at the next start."
                f" This takes {self.suspend_timeout:.0f} seconds at most."
            )
            try:
                await self._suspend_kernels()
            except GpuCkptError as error:
                hint = f" {error.hint}" if error.hint else ""
                self.log.warning("%s: not suspended: %s%s", self._log_name, error, hint)
            except Exception:
                self.log.exception("%s: its kernels were not suspended", self._log_name)
            finally:
                self.suspending_message = ""
        # Without a report, what the server listed at its start may still wait: perhaps it did not even come so far.
        self._waiting, self._set_aside = self._set_aside + self._waiting, Waiting()
        self._started_again = False
        await maybe_future(super().stop(now=now))

    def is_on_this_machine(self) -> bool:
        """Return whether servers are known to run on the hub's machine."""
        return isinstance(self, LocalProcessSpawner)

    @property
    def stop_seconds(self) -> int:
        """Return the seconds that a server may take to end after a stop signal."""
        return math.ceil(self.suspend_timeout) + STOP_MARGIN_SECONDS

    def check_configuration(self) -> None:
        """Raise ConfigurationError if the engine would kill a server while it suspends kernels. Here nothing is known of the engine."""

    def check_all(self) -> None:
        """Raise ConfigurationError for what would cut suspends short, lose a user's choice of a start, or be ignored by servers."""
        _check_retention(self.retention)
        if self.offer_clean_start and not getattr(self, "remove", True):
            # The choice is in the container's environment. To make the container anew could remove the user's files.
            raise ConfigurationError(
                "c.GpuCkptSpawnerMixin.offer_clean_start does not work with c.DockerSpawner.remove = False: a container that is kept"
                " starts each time as it was started first. After a clean start the sessions of its user would never be listed again;"
                " without one they would be listed, and counted as set aside, too.",
                hint="Set c.DockerSpawner.remove = True, with volumes for the users' homes; or leave offer_clean_start out.",
            )
        self.check_configuration()

    def require_time(self, setting: str, seconds: object) -> None:
        """Raise ConfigurationError if a setting of the engine lets it kill a server earlier than `stop_seconds` after the signal."""
        if not isinstance(seconds, int | float):
            raise ConfigurationError(
                f"{setting} = {seconds!r} is not a number of seconds.",
                hint=f"Set it to {self.stop_seconds} or more, without quotes; or leave it out, so that this spawner chooses the time.",
            )
        if seconds < self.stop_seconds:
            raise ConfigurationError(
                f"With {setting} = {seconds:g} s a server would be killed while its kernels are being suspended, which may take"
                f" {self.suspend_timeout:g} s (c.GpuCkptSpawnerMixin.suspend_timeout) and {STOP_MARGIN_SECONDS} s for its end.",
                hint=f"Leave the setting out, so that this spawner chooses the time; or set it to {self.stop_seconds} s or more;"
                " or lower suspend_timeout.",
            )

    async def start(self) -> object:
        """Start the server as the base class does. Raises ConfigurationError if it could be killed while it suspends kernels."""
        self._starts_clean = self._chooses_clean_start()
        waiting = self._waiting = self._for_next_start()
        self._set_aside, self._started_again = Waiting(), False
        self.check_all()
        url: object = await maybe_future(super().start())
        if self._starts_clean:
            self._waiting, self._set_aside = Waiting(), waiting
        # From now on the server lists its kernels; if it crashes, it is unknown which of them still wait.
        self._started_again = True
        return url

    def get_env(self) -> dict[str, str]:
        """Return the base class's environment, with the choice of a clean start and the administrator's rules."""
        env: dict[str, str] = super().get_env() | _rules_environment(
            self.retention, self.disk_limit
        )
        return {**env, _CLEAN_START: "1"} if self._starts_clean else env

    async def get_options_form(self) -> str:
        """Return the form before the start: what waits, if that is configured, then the base class's form."""
        others: str = await super().get_options_form() or ""
        waiting = self._for_next_start()
        if self.offer_clean_start and waiting.count:
            return start_form(waiting, time.time()) + others
        return others

    async def run_options_from_form(self, form_data: dict[str, Any]) -> object:
        """Return the base class's options, without the choice of a clean start: the hub would keep it for later starts."""
        form_data.pop(FIELD, None)
        if not form_data:
            return self.user_options  # the form had nothing else
        return await maybe_future(super().run_options_from_form(form_data))

    async def progress(self) -> AsyncIterator[dict[str, Any]]:
        """Yield the events of the start page: first the suspended sessions, then the base class's."""
        if self._waiting.count and not self._starts_clean:
            yield {"progress": 5, "message": waiting_message(self._waiting)}
        if note := exceeded(self._usage):
            yield {"progress": 5, "message": note}
        async for event in super().progress():
            yield event

    async def poll_and_notify(self) -> object:
        """Do what the hub does periodically; if the server runs, request its numbers when that is due."""
        status: object = await super().poll_and_notify()
        is_due = time.monotonic() - self._usage_asked_at >= _REPORT_SECONDS
        # Without the server's own token, after a restart of the hub, each request would need a new one.
        if status is None and is_due and self.server is not None and self.api_token:
            # Not awaited: the hub also polls a server that it is about to stop.
            update = self._update_usage(self.server.url, iter([self.api_token]))
            self._usage_update = asyncio.ensure_future(update)
            self._usage_asked_at = time.monotonic()
        return status

    def load_state(self, state: dict[str, Any]) -> None:
        """Load the base class's state, what waits, and the numbers for `hub-report`."""
        super().load_state(state)
        found = SpawnerState.from_state(state)
        self._waiting, self._set_aside, self._usage = found.waiting, found.set_aside, found.usage

    def get_state(self) -> dict[str, Any]:
        """Return the base class's state, what waits until the next start, and the numbers for `hub-report`."""
        state: dict[str, Any] = super().get_state()
        if self._waiting.count and not self._started_again:
            state[WAITING] = msgspec.to_builtins(self._waiting)
        if self._set_aside.count:
            state[SET_ASIDE] = msgspec.to_builtins(self._set_aside)
        if self._usage.at:
            state[USAGE] = msgspec.to_builtins(self._usage)
        return state

    def _for_next_start(self) -> Waiting:
        """Return what waits for the next server."""
        return self._set_aside if self._started_again else self._set_aside + self._waiting

    def _chooses_clean_start(self) -> bool:
        """Return whether the form chooses so that has led to this start; an earlier one may have led to none."""
        request = getattr(self.handler, "request", None)
        if not self.offer_clean_start or request is None:
            return False
        return bool(request.body_arguments.get(FIELD) == [CLEAN.encode()])

    async def _suspend_kernels(self) -> None:
        """Request a suspend of all kernels, and record what waits then. Raises GpuCkptError if no report comes."""
        if self.server is None:
            return
        began, limit = time.monotonic(), self.suspend_timeout
        async with _turns.turn(self.suspends_at_once, _LONGEST_WAIT * limit):
            left = max(0.0, limit - (time.monotonic() - began))
            with closing(self._tokens()) as tokens:
                report = await server_request.suspend_all(
                    left, self.server.url, tokens, self._ssl_context()
                )
        saved = [
            WaitingKernel(one.name or one.kernel_id, one.size_bytes, one.gpu_bytes, one.since)
            for one in report.kernels
            if one.saved
        ]
        self._waiting = Waiting.of(saved)
        self._log_report(report, len(saved), time.monotonic() - began)
        with closing(self._tokens()) as tokens:
            await self._update_usage(self.server.url, tokens)

    async def _update_usage(self, server_url: str, tokens: Iterator[str]) -> None:
        """Request the server's numbers; those of an earlier request stay if that fails. Never raises."""
        try:
            found = await server_request.usage(server_url, tokens, self._ssl_context())
            was_exceeded = exceeds(self._usage)
            self._usage = now = msgspec.structs.replace(found, limit_bytes=self.disk_limit)
            # Log this once, not at each request.
            if exceeds(now) and not was_exceeded:
                self.log.warning(
                    "%s: the snapshots take %s on the disk, more than the limit of %s.",
                    self._log_name,
                    size(now.disk_bytes),
                    size(now.limit_bytes),
                )
        except GpuCkptError as error:
            self.log.debug("%s: no numbers for hub-report: %s", self._log_name, error)
        except Exception:
            self.log.exception("%s: no numbers for hub-report", self._log_name)

    def _tokens(self) -> Generator[str]:
        """Yield the server's own token, then a new one for this request: the first may be unknown (hub restart) or insufficient."""
        if self.api_token:
            yield self.api_token
        token = self.user.new_api_token(
            note="jupyter-gpuckpt: suspend the kernels before a stop",
            expires_in=int(self.suspend_timeout) + _TOKEN_SECONDS,
            scopes=[f"access:servers!server={self.user.name}/{self.name}"],
        )
        try:
            yield token
        finally:
            found = orm.APIToken.find(self.db, token)
            if found is not None:
                self.db.delete(found)
                self.db.commit()

    def _ssl_context(self) -> ssl.SSLContext | None:
        """Return the TLS context that the hub uses with `internal_ssl`; None without it."""
        settings = self.user.settings
        if not settings.get("internal_ssl"):
            return None
        context: ssl.SSLContext = make_ssl_context(
            settings["internal_ssl_key"],
            settings["internal_ssl_cert"],
            cafile=settings["internal_ssl_ca"],
        )
        return context

    def _log_report(self, report: Report, saved: int, seconds: float) -> None:
        self.log.info(
            "%s: %d of %s suspended, %.1f s",
            self._log_name,
            saved,
            counted(len(report.kernels), "kernel"),
            seconds,
        )
        failed = [outcome for outcome in report.kernels if not outcome.saved]
        for outcome in failed[:_LOGGED]:
            why = outcome.error.message if outcome.error else "The reason is not known."
            self.log.warning(
                "%s: kernel %s was not suspended: %s", self._log_name, outcome.kernel_id, why
            )
        if len(failed) > _LOGGED:
            self.log.warning("%s: %d more were not.", self._log_name, len(failed) - _LOGGED)


def with_suspend(spawner: str | type) -> type:
    """Return a subclass of a spawner class that suspends kernels before it stops a server.

    `spawner`: the class, its import path, or a name that `c.JupyterHub.spawner_class` takes ("docker", "simple").
    """
    check_at_start(GpuCkptSpawnerMixin)
    used = spawner if isinstance(spawner, type) else _found(spawner)
    if issubclass(used, GpuCkptSpawnerMixin):
        return used
    named = {"__doc__": used.__doc__, "__module__": __name__}
    return type(f"GpuCkpt{used.__name__}", (GpuCkptSpawnerMixin, used), named)


def _found(name: str) -> type:
    for entry_point in metadata.entry_points(group="jupyterhub.spawners", name=name.lower()):
        found: type = entry_point.load()
        return found
    imported: type = import_item(name)
    return imported
