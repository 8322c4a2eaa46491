"""Templates as pages see them, and builds of them that this server has begun in processes of their own."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import msgspec

from ...client import programs, templates
from ...client.templates import TemplateFolder
from ...errors import ConfigurationError, ErrorRecord, KernelBusy
from ...wire import decoding

if TYPE_CHECKING:
    from ...wire.daemon_settings import Settings


class _Failed(msgspec.Struct):
    """What a command prints that has failed (`cli/printing.py`)."""

    error: ErrorRecord


class TemplateState(msgspec.Struct, frozen=True):
    """A template, or one that is being made. `why`: why its kernels are no copies now; empty: they are. `error`: of the last build."""

    name: str
    title: str
    is_being_built: bool
    why: str = ""
    error: ErrorRecord | None = None


class TemplateBuilders:
    """The builds that this server has begun, by the template's name, until they are asked for after their end."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._building: dict[str, asyncio.Task[None]] = {}
        self._failed: dict[str, ErrorRecord] = {}

    async def listed(self) -> list[TemplateState]:
        """List the templates, with those that are being made, or could not be."""
        found = await asyncio.to_thread(self._stored)
        known = {one.name for one in found}
        new = [
            TemplateState(name, "", name in self._building, error=self._failed.get(name))
            for name in sorted({*self._building, *self._failed} - known)
        ]
        return [*found, *new]

    async def create(self, name: str, title: str, snapshot_id: str) -> None:
        """Start a build of a template from the cells that ran before a snapshot. Raises ConfigurationError, KernelBusy."""
        folder = TemplateFolder(self._settings.data, name)
        await asyncio.to_thread(folder.require_free)
        if name in self._building:
            raise KernelBusy(f"The template {name} is being built.")
        self._failed.pop(name, None)
        words = ["create", name, "--from-snapshot", snapshot_id, "--title", title, "--json"]
        process = await asyncio.create_subprocess_exec(
            *programs.command("cli"),
            "template",
            *words,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
            start_new_session=True,
        )
        self._building[name] = asyncio.ensure_future(self._ended(name, process))

    async def _ended(self, name: str, process: asyncio.subprocess.Process) -> None:
        try:
            printed, _ = await process.communicate()
            if process.returncode:
                self._failed[name] = _error_in(printed)
        finally:
            del self._building[name]

    def _stored(self) -> list[TemplateState]:
        found = []
        for folder in templates.folders(self._settings.data):
            try:
                template = folder.get()
                why = templates.staleness(template, folder.cells(template))
            except ConfigurationError as error:
                found.append(TemplateState(folder.name, "", is_being_built=False, why=str(error)))
                continue
            found.append(
                TemplateState(
                    template.name,
                    template.display_name,
                    folder.is_being_built,
                    why,
                    template.error,
                )
            )
        return found


def _error_in(printed: bytes) -> ErrorRecord:
    """Return the error that a command has printed."""
    try:
        return decoding.from_json(printed, _Failed).error
    except msgspec.DecodeError:
        return ErrorRecord("The template could not be built.", "error")
