"""Building templates: a kernel runs the recipe, is saved and ended; its snapshot and a kernelspec make the template.

A build that fails, or is killed, leaves the template as it was before; what it had made is removed by itself or by the next build.
"""

from __future__ import annotations

import asyncio
import os
import platform
import re
import time
import uuid
from collections.abc import Callable, Mapping
from contextlib import suppress
from importlib import resources
from pathlib import Path
from queue import Empty
from typing import TYPE_CHECKING, Any

import msgspec
from gpuckpt_provisioner import GpuCkptProvisioner
from gpuckpt_provisioner.agent_installation import answer
from gpuckpt_provisioner.launch_spec import log_path
from gpuckpt_provisioner.owner import ScriptOwner, connected
from jupyter_client.asynchronous import AsyncKernelClient
from jupyter_client.manager import AsyncKernelManager

from ..client import recipes, templates
from ..client.agent_code import AGENT_REQUEST, IMPLEMENTATION, installation_request
from ..client.templates import TemplateFolder
from ..errors import (
    ConfigurationError,
    GpuCkptError,
    HostError,
    KernelError,
    KernelLost,
    KernelNotCheckpointable,
    SnapshotNotFound,
    StoreUnavailable,
)
from ..kernel_agent import __name__ as agent_package
from ..wire import calls
from ..wire.protocol import SaveRequest
from ..wire.template_records import TEMPLATE_VERSION, Cache, Sources, Template
from . import template_kernelspecs

if TYPE_CHECKING:
    from jupyter_client.connect import KernelConnectionInfo

    from ..client import Client
    from ..wire.daemon_settings import Settings
    from ..wire.protocol import Result

#: The variables with which a recipe runs: those that say where things are and how libraries work. No others, because everything that
#: the recipe's kernel has in memory is in every copy.
_USUAL = re.compile(
    "PATH|HOME|USER|LOGNAME|SHELL|LANG|LANGUAGE|LC_.*|TZ|TMPDIR|VIRTUAL_ENV|LD_LIBRARY_PATH|IPYTHONDIR|.*_HOME|XDG_.*_(HOME|DIR|DIRS)"
    "|PYTHON.*|CONDA_.*|CUDA_.*|NVIDIA_.*|JUPYTER_(DATA|CONFIG|RUNTIME)_DIR|JUPYTER_GPUCKPT_.*|MPL.*|.*_NUM_THREADS|.*_CACHE(_DIR)?"
)
_SECRET = re.compile("TOKEN|SECRET|PASSWORD|PASSWD|CREDENTIAL|(^|_)KEY", re.IGNORECASE)
_ANSWER_SECONDS, _START_SECONDS = 60.0, 120.0

#: Called with the number of cells that have run, and of all.
Progress = Callable[[int, int], None]


def create(
    settings: Settings,
    name: str,
    source: Path | None,
    *,
    cells: list[str] | None = None,
    kernel: str,
    title: str = "",
    variables: list[str] | None = None,
    progress: Progress,
) -> Template:
    """Make a template from a notebook or a script, or from cells, with its snapshot and its kernelspec. If that fails, nothing is left."""
    folder = TemplateFolder(settings.data, name)
    folder.require_free()
    template_kernelspecs.require_free(name)
    base = template_kernelspecs.base_of(kernel)
    template = Template(
        TEMPLATE_VERSION,
        name,
        title or template_kernelspecs.default_title(base, name),
        kernel,
        str(source.absolute()) if source is not None else "",
        variables or [],
    )
    with folder.built_by_us():
        return _build(settings, folder, template, progress, cells)


def create_from_snapshot(
    settings: Settings,
    name: str,
    snapshot_id: str,
    *,
    title: str = "",
    variables: list[str] | None = None,
    progress: Progress,
) -> Template:
    """Make a template whose recipe is the cells that had run in a snapshot's notebook; they run again. As `create`."""
    with connected(settings) as client:
        found = client.send(calls.snapshot_notebook(snapshot_id))
        described = client.send(calls.launch_spec(snapshot_id)).jupyter
    return create(
        settings,
        name,
        None,
        cells=recipes.cells_that_ran(bytes(found.notebook)),
        kernel=str(described.get("kernel_name") or "python3"),
        title=title,
        variables=variables,
        progress=progress,
    )


def rebuild(
    settings: Settings, name: str, *, if_needed: bool = False, progress: Progress
) -> Template:
    """Run a template's recipe again. If that fails, the template stays as it is, and its record says why.

    `if_needed`: only if its snapshot is not what the recipe would make now.
    """
    folder = TemplateFolder(settings.data, name)
    folder.get()
    with folder.built_by_us():
        template = folder.get()  # another process may just have built it
        if if_needed and not _is_needed(settings, folder, template):
            return template
        try:
            return _build(settings, folder, template, progress)
        except GpuCkptError as error:
            folder.write(templates.failed(template, error), {})
            raise


def remove(settings: Settings, name: str) -> None:
    """Remove a template: its kernelspec, its snapshot and its recipe.

    Raises KernelBusy while it is being built, or kernels are being started from it.
    """
    folder = TemplateFolder(settings.data, name)
    with folder.built_by_us():
        try:
            template: Template | None = folder.get()
        except ConfigurationError:
            if not folder.path.exists():
                raise
            template = None  # its file cannot be read
        with connected(settings) as client:
            _remove_left(folder, client, template)
            folder.remove(lambda: template_kernelspecs.remove(name))
            if template is not None and template.cache is not None:
                _delete(client, template.cache.snapshot_id)


def _is_needed(settings: Settings, folder: TemplateFolder, template: Template) -> bool:
    cache = template.cache
    if cache is None or templates.staleness(template, folder.cells(template)):
        return True
    with connected(settings) as client:
        try:
            return bool(client.send(calls.changes(cache.snapshot_id)).obstacles)
        except GpuCkptError:  # it was deleted, or is damaged
            return True


def _build(
    settings: Settings,
    folder: TemplateFolder,
    template: Template,
    progress: Progress,
    cells: list[str] | None = None,
) -> Template:
    """Build a template while no other process does; `template`: without a cache it is new. `cells`: by default those of its recipe."""
    try:
        with connected(settings) as client:
            _remove_left(folder, client, template)
            try:
                return _built(settings, client, folder, template, progress, cells)
            finally:
                with suppress(GpuCkptError):  # it would hide why the build failed
                    _remove_left(folder, client, folder.find())
    except OSError as error:
        raise StoreUnavailable(
            f"The template {template.name} cannot be written: {error.strerror}."
        ) from error


def _built(
    settings: Settings,
    client: Client,
    folder: TemplateFolder,
    template: Template,
    progress: Progress,
    cells: list[str] | None,
) -> Template:
    source = Path(template.source)
    if cells is None:
        cells = folder.cells(template) if folder.recipe.exists() else recipes.read(source)
    kernel_id = str(uuid.uuid4())
    folder.begin_build(kernel_id)
    cwd = source.parent if template.source and source.parent.is_dir() else folder.path
    build = _Build(settings, template, kernel_id, cells, cwd, folder.path, progress)
    cache = asyncio.run(build.run())
    built = msgspec.structs.replace(template, cache=cache, error=None, failed_at=0.0)
    # From here on the template is what was built now; a failure goes back to what it was.
    folder.write(
        built, {folder.recipe: recipes.as_notebook(cells), folder.start: _start_code(template)}
    )
    try:
        template_kernelspecs.write(built, folder)
    except BaseException:
        if template.cache is None:
            template_kernelspecs.remove(template.name)
            folder.remove_record()
        else:
            folder.write(template, {})
        raise
    if template.cache is not None:
        _delete(client, template.cache.snapshot_id)
    return built


def _remove_left(folder: TemplateFolder, client: Client, template: Template | None) -> None:
    """Remove what a build has made that belongs to no template."""
    building = folder.interrupted_build()
    if building is None:
        return
    kept = template.cache.snapshot_id if template is not None and template.cache else ""
    for snapshot in client.send(calls.snapshots(building.kernel_id)):
        if snapshot.snapshot_id != kept:
            _delete(client, snapshot.snapshot_id)
    folder.end_build()


def _delete(client: Client, snapshot_id: str) -> None:
    with suppress(SnapshotNotFound):
        client.send(calls.delete_snapshot(snapshot_id))


def _start_code(template: Template) -> bytes:
    """Return the file that an ordinary kernel of the template executes at its start."""
    code = resources.files(agent_package).joinpath("recipe_start.py").read_text()
    values = f"SOURCE, NAME = {template.source!r}, {template.name!r}\n"
    return code.replace('SOURCE, NAME = "", ""\n', values).encode()


def _environment(environment: Mapping[str, str], more: list[str]) -> dict[str, str]:
    """Return the variables with which a recipe runs."""
    return {
        name: text
        for name, text in environment.items()
        if name in more or (_USUAL.fullmatch(name) and not _SECRET.search(name))
    }


class _BuildOwner(ScriptOwner):
    """This process as the owner of the kernel that runs a recipe; it ends with this process."""

    def launched(self, kernel_id: str, connection: KernelConnectionInfo) -> None:
        """Do nothing: the agent is installed before the recipe runs."""


class _Manager(AsyncKernelManager):
    """A manager whose kernel the given owner owns."""

    def __init__(self, owner: _BuildOwner, kernel_id: str, **traits: Any) -> None:  # noqa: ANN401 - as the base
        super().__init__(**traits)
        self.gpuckpt_owner, self.kernel_id = owner, kernel_id
        self.provisioner = GpuCkptProvisioner(
            kernel_id=kernel_id, kernel_spec=self.kernel_spec, parent=self
        )


class _Build:
    """The build of a template's cache: one run of its recipe in a kernel, and the save of that kernel."""

    def __init__(
        self,
        settings: Settings,
        template: Template,
        kernel_id: str,
        cells: list[str],
        cwd: Path,
        folder: Path,
        progress: Progress,
    ) -> None:
        self._owner = owner = _BuildOwner(settings)
        self._template, self._cells = template, cells
        self._cwd, self._folder, self._progress = cwd, folder, progress
        self._kernel_id, self._log = kernel_id, log_path(settings, kernel_id)
        self._manager = _Manager(owner, kernel_id, kernel_name=template.kernel)

    async def run(self) -> Cache:
        """Start a kernel, run the recipe, save the kernel and end it; return what was made."""
        variables = self._template.variables
        manager = self._manager
        try:
            await manager.start_kernel(cwd=str(self._cwd), env=_environment(os.environ, variables))
            provisioner = manager.provisioner
            if isinstance(provisioner, GpuCkptProvisioner) and provisioner.plain_reason:
                raise HostError(provisioner.plain_reason, hint=provisioner.plain_hint)
            client: AsyncKernelClient = manager.client()
            client.start_channels()
            try:
                return await self._made(client)
            finally:
                client.stop_channels()
        finally:
            await manager.shutdown_kernel(now=True)
            manager.context.destroy(linger=0)

    async def _made(self, client: AsyncKernelClient) -> Cache:
        await self._install(client)
        began = time.time()
        for number, cell in enumerate(self._cells):
            self._progress(number, len(self._cells))
            await self._execute(client, cell, number + 1)
        self._progress(len(self._cells), len(self._cells))
        seconds = time.time() - began
        await self._ask(client, "trim", seconds=1.0)
        ended = await self._ask(
            client, "recipe_ended", folder=str(self._folder), log=str(self._log)
        )
        if "left" not in ended:
            raise KernelError("The recipe's kernel does not answer.")
        if left := ended["left"]:
            raise KernelNotCheckpointable(
                f"The recipe leaves what copies of its kernel cannot share: {'; '.join(map(str, left))}.",
                hint="Let its last cell close or end it.",
            )
        peers = await self._ask(client, "peers_off")
        result = await asyncio.to_thread(self._save, peers.get("peer_access") == "off")
        return Cache(
            result.snapshot_id,
            self._kernel_id,
            time.time(),
            seconds,
            recipes.digest_of(self._cells),
            templates.agent_digest(),
            platform.node(),
            msgspec.convert(ended["sources"], Sources),
            result.sizes,
        )

    def _save(self, peer_access_off: bool) -> Result:
        name = f"template {self._template.name}"
        request = SaveRequest(name=name, title=name, pinned=True, peer_access_off=peer_access_off)
        client = self._owner.client()
        return client.wait(client.send(calls.save(self._kernel_id, request)).operation_id)

    async def _install(self, client: AsyncKernelClient) -> None:
        info = await answer(client, "kernel_info_request", {}, _START_SECONDS)
        if info.get("implementation") != IMPLEMENTATION:
            raise KernelError(
                f"The kernel {self._template.kernel} does not answer as one of IPython."
            )
        reply = await answer(client, "execute_request", installation_request(), _ANSWER_SECONDS)
        if reply.get("status") != "ok":
            raise KernelError(
                "The recipe's kernel cannot be prepared for copies.",
                hint="Its version of ipykernel may be too old: 6.29 and newer ones can.",
                details=str(reply.get("evalue", "It did not answer.")),
            )

    async def _execute(self, client: AsyncKernelClient, cell: str, number: int) -> None:
        request_id = client.execute(cell, silent=True, store_history=False, allow_stdin=False)
        while True:
            try:
                reply = await client.get_shell_msg(timeout=1.0)
            except Empty:
                if not await self._manager.is_alive():
                    raise KernelLost(f"The kernel ended in cell {number} of the recipe.") from None
                continue
            if reply["parent_header"].get("msg_id") == request_id:
                break
        content = reply["content"]
        if content["status"] != "ok":
            raise KernelError(
                f"Cell {number} of the recipe failed: {content.get('ename')}: {content.get('evalue')}",
                details="\n".join(content.get("traceback", [])),
            )

    async def _ask(self, client: AsyncKernelClient, op: str, **arguments: object) -> dict[str, Any]:
        return await answer(client, AGENT_REQUEST, {"op": op, **arguments}, _ANSWER_SECONDS)
