"""The records of remotes, shared by the command line and the daemon's programs, and their messages about remotes."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from enum import StrEnum
from urllib.parse import urlsplit

import msgspec

from ..errors import ConfigurationError, ErrorRecord, RemoteNotFound
from . import ids
from .retention_policy import RetentionPolicy

#: The allowed settings of a remote, by the scheme of its URL. Keys and tokens are excluded on purpose.
SETTINGS = {
    "s3": {"endpoint", "region", "profile", "virtual_hosted_style_request", "allow_http"},
    "gs": {"allow_http"},
    "az": {"account_name", "endpoint", "use_azure_cli", "allow_http"},
    "file": set[str](),
}


#: Variables that hold a provider's secret. Kernels inherit them from the server's environment.
_SECRET_VARIABLES = {
    "s3": ("AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"),
    "gs": ("GOOGLE_SERVICE_ACCOUNT_KEY",),
    "az": (
        "AZURE_CLIENT_SECRET",
        "AZURE_STORAGE_ACCESS_KEY",
        "AZURE_STORAGE_ACCOUNT_KEY",
        "AZURE_STORAGE_KEY",
        "AZURE_STORAGE_SAS_KEY",
        "AZURE_STORAGE_SAS_TOKEN",
        "AZURE_STORAGE_TOKEN",
    ),
}


class Capabilities(msgspec.Struct, frozen=True):
    """The capabilities of an endpoint, found by trying."""

    #: Whether it can refuse to overwrite an object.
    create_only: bool
    #: Whether it can replace an object only if it is the one that was read.
    compare_and_swap: bool
    ranges: bool
    lists: bool
    #: Whether it reports a missing object as missing, and not as access denied.
    tells_missing: bool
    deletes: bool
    #: Whether it keeps overwritten and deleted objects.
    versioned: bool = False
    #: The endpoint's clock minus this machine's, in seconds.
    clock_ahead_seconds: float = 0.0
    tried_at: float = 0.0


class EntryKind(StrEnum):
    """The kind of the secret that opens an entry of a remote's key."""

    PASSWORD = "password"  # noqa: S105 - a word
    FILE = "key file"
    #: A random one in the line by which a machine joins.
    CODE = "code"


class Remote(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A bucket and prefix for snapshots. `check` raises ConfigurationError for settings that cannot work."""

    name: str
    url: str
    settings: dict[str, str] = {}
    #: Bytes per second; 0: no limit.
    upload_rate: int = 0
    #: Whether snapshots are uploaded automatically.
    automatic: bool = True
    #: Whether automatic uploads are paused, e.g. because the machine is offline or its traffic is metered.
    paused: bool = False
    #: Kernels whose remote sessions were erased, and when (seconds since the epoch): they are no longer uploaded automatically.
    erased: dict[str, float] = {}
    capabilities: Capabilities | None = None
    #: The file with this machine's secret; empty: one in the data directory.
    key_file: str = ""

    @property
    def scheme(self) -> str:
        """The scheme of the URL, which is the kind of the endpoint."""
        return urlsplit(self.url).scheme

    @property
    def clock_ahead_seconds(self) -> float:
        """The endpoint's clock minus this machine's, when it was tested last."""
        return self.capabilities.clock_ahead_seconds if self.capabilities else 0.0

    @property
    def place(self) -> tuple[str, str, str]:
        """The location: remotes with the same place have the same objects."""
        return self.url, self.settings.get("endpoint", ""), self.settings.get("account_name", "")

    def check(self) -> None:
        """Raise ConfigurationError for a URL or settings that cannot work, or that hold a secret."""
        if not ids.is_id(self.name):
            raise ConfigurationError(
                f"{self.name[:200]!r} cannot be the name of a remote.",
                hint="At most 128 letters, digits, '_', '-' and '.' make one.",
            )
        try:
            url = urlsplit(self.url)
            port = url.port
        except ValueError as error:
            raise _invalid_url(self.name, "it cannot be parsed") from error
        if url.scheme not in SETTINGS:
            raise _invalid_url(self.name, f"{url.scheme!r} is none of {', '.join(SETTINGS)}")
        if url.username is not None or url.password is not None or url.query or url.fragment:
            # The URL is not repeated in the message, because it may contain a password or a token.
            raise _invalid_url(self.name, "it holds credentials or a query")
        if url.scheme == "file":
            if url.netloc or not url.path.startswith("/") or url.path.strip("/") == "":
                raise _invalid_url(self.name, "a folder is file:///path")
        elif not url.netloc or port is not None:
            raise _invalid_url(self.name, f"it is {url.scheme}://BUCKET/PREFIX")
        if any(part in {".", ".."} for part in url.path.split("/")):
            raise _invalid_url(self.name, "'.' and '..' in it lead elsewhere")
        for setting in self.settings.keys() - SETTINGS[url.scheme]:
            known = ", ".join(sorted(SETTINGS[url.scheme])) or "none"
            raise ConfigurationError(
                f"Remote {self.name}: there is no setting {setting[:100]!r} for {url.scheme}.",
                hint=f"These are known: {known}. Credentials are found in the environment, a file or a role.",
            )
        self._check_endpoint()

    def _check_endpoint(self) -> None:
        endpoint = self.settings.get("endpoint")
        if endpoint is None:
            return
        try:
            url = urlsplit(endpoint)
            is_sound = url.scheme in {"http", "https"} and url.username is None and not url.query
            is_sound &= url.port is None or url.port > 0
        except ValueError:
            is_sound = False
        if not is_sound:
            raise ConfigurationError(
                f"Remote {self.name}: the endpoint must have the form http(s)://HOST[:PORT], without credentials."
            )
        if (
            url.scheme == "http"
            and url.hostname not in {"127.0.0.1", "::1", "localhost"}
            and self.settings.get("allow_http") != "true"
        ):
            raise ConfigurationError(
                f"Remote {self.name}: connections to the endpoint would not be encrypted.",
                hint="Use https, or allow it if no one else can read the traffic.",
                command="--set allow_http=true allows it.",
            )


def chosen(named: str, names: Sequence[str]) -> str:
    """Return the remote that a request names, or the only one. Raises RemoteNotFound, ConfigurationError if there is a choice."""
    if named and named not in names:
        raise RemoteNotFound(
            f"There is no remote {named!r}.", command="`jupyter gpuckpt remote list` lists them."
        )
    if not names:
        raise ConfigurationError(
            "There is no remote to which the kernel could be moved.",
            hint="Add one.",
            command="`jupyter gpuckpt remote create` makes one, `jupyter gpuckpt remote add` joins one.",
        )
    if not named and len(names) > 1:
        raise ConfigurationError(
            f"There are {len(names)} remotes to which the kernel could be moved.",
            hint=f"Name one of {', '.join(names)}.",
        )
    return named or names[0]


def secrets_in(remote: Remote, environ: Mapping[str, str] = os.environ) -> list[str]:
    """Return the names of the environment's variables that hold a secret for this remote."""
    return [name for name in _SECRET_VARIABLES.get(remote.scheme, ()) if environ.get(name)]


def _invalid_url(name: str, why: str) -> ConfigurationError:
    return ConfigurationError(
        f"The URL of remote {name[:200]} cannot be used: {why}.",
        hint="Examples: s3://bucket/prefix, gs://bucket/prefix, az://container/prefix, file:///mnt/share/folder.",
    )


class RemoteVerb(StrEnum):
    """The commands about remotes."""

    CREATE = "create"
    ADD = "add"
    TEST = "test"
    LIST = "list"
    REMOVE = "remove"
    PAUSE = "pause"
    RESUME = "resume"
    LIST_KEY = "list_key"
    ADD_CODE = "add_code"
    ADD_PASSWORD = "add_password"  # noqa: S105 - a word
    REMOVE_ENTRY = "remove_entry"
    ROTATE_KEY = "rotate_key"
    RESTORE_KEY = "restore_key"
    PLAN_ERASE = "plan_erase"
    ERASE = "erase"
    VERIFY = "verify"
    PRUNE = "prune"


class GivenSecret(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The line by which a machine joins and the password that a user typed, as far as given. It is never logged or an argument."""

    line: str = ""
    password: str = ""

    def __repr__(self) -> str:
        return "GivenSecret()"


class NewRemote(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Body of POST /remotes and of POST /remotes/test: a remote to be added, or a place to be tested for it.

    `joins`: the store that is there is joined; otherwise a new one is made. `secret`: opens its key if this machine's own secret does not.
    `url` may be empty if `secret` has a line.
    """

    name: str
    url: str = ""
    settings: dict[str, str] = {}
    joins: bool = False
    secret: GivenSecret = GivenSecret()


class TriedRemote(msgspec.Struct, frozen=True):
    """A tested place. With `refusals` it cannot be used; `warnings`: limitations. `has_store`: a store is there already."""

    url: str
    refusals: list[str] = []
    warnings: list[str] = []
    has_store: bool = False


class AddedRemote(msgspec.Struct, frozen=True):
    """A remote that was added, or that got a new line. `line`: by which other machines join; its code is shown only once.

    It is empty for a remote that was joined.
    """

    name: str
    warnings: list[str] = []
    line: str = ""


class RemotePruneRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A request to remove the snapshots that `policy` does not keep from a remote. `dry_run`: only judge them.

    `lost_machine`: the host name or id of a machine that needs nothing in the remote any more, because it never comes back.
    """

    policy: RetentionPolicy = RetentionPolicy()
    dry_run: bool = False
    lost_machine: str = ""


class RemoteCall(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A command about remotes, for the data directory `data_dir`.

    `remote`: the one to be created or added; its URL may be empty if `secret` has a line. `name`: of the remote. `secret`: opens its key
    if this machine's own secret does not, or is a new password. `entry`: the id of an entry of the key to be removed. `session`: to be
    erased; empty: everything. `sample`: how many snapshots, and chunks of each, are verified.
    """

    verb: RemoteVerb
    data_dir: str
    name: str = ""
    remote: Remote | None = None
    secret: GivenSecret | None = None
    entry: str = ""
    session: str = ""
    sample: int = 0
    prune: RemotePruneRequest = RemotePruneRequest()


class RemoteView(msgspec.Struct, frozen=True):
    """A remote for display. With `refusals` it cannot be used; `warnings`: limitations."""

    remote: Remote
    refusals: list[str] = []
    warnings: list[str] = []


class EntryView(msgspec.Struct, frozen=True):
    """An entry of a remote's key for display. `here`: this machine's own."""

    entry_id: str
    kind: EntryKind
    host: str
    user: str
    added: float
    here: bool


class SessionToErase(msgspec.Struct, frozen=True):
    """A remote session to be erased. `stored_bytes`: the sum over its snapshots; shared chunks count for each."""

    session_id: str
    path: str
    host_name: str
    snapshots: int
    stored_bytes: int


class ErasePlan(msgspec.Struct, frozen=True):
    """The content to be erased. `objects` and `stored_bytes`: of the whole remote. `unreadable`: why its sessions are not known."""

    sessions: list[SessionToErase]
    objects: int
    stored_bytes: int
    unreadable: str = ""
    #: Whether the endpoint keeps deleted objects.
    versioned: bool = False


class Erasure(msgspec.Struct, frozen=True):
    """The result of an erasure. `rewritten`: packs partly needed by other sessions. `left`: objects that could not be deleted."""

    snapshots: int
    removed: int
    rewritten: int
    freed_bytes: int
    left: int


class Damage(msgspec.Struct, frozen=True):
    """An object that cannot be fetched: its `name`, the remote session or snapshot that needs it, and the reason."""

    session_id: str
    snapshot_id: str
    name: str
    why: str


class Drill(msgspec.Struct, frozen=True):
    """The result of fetching a sample. `listed`: the number of all snapshots of the remote."""

    listed: int = 0
    snapshots: int = 0
    chunks: int = 0
    chunk_bytes: int = 0
    damaged: list[Damage] = []


class RemoteVerdict(msgspec.Struct, frozen=True):
    """The verdict of `remote prune` on a snapshot: whether it is removed, and the reason."""

    session_id: str
    path: str
    host_name: str
    snapshot_id: str
    created: float
    title: str
    stored_bytes: int
    removed: bool
    reason: str


class RemotePruning(msgspec.Struct, frozen=True):
    """The verdicts on all snapshots of a remote, newest first; none without a rule.

    `freed_bytes`: of the packs that only removed snapshots need. `lost`: the ids of the snapshots that a lost machine needs no longer,
    or, in a dry run, would need no longer.
    """

    verdicts: list[RemoteVerdict] = []
    freed_bytes: int = 0
    lost: list[str] = []


class RemoteAnswer(msgspec.Struct, frozen=True):
    """The result of a `RemoteCall`. `line`: by which other machines join; it may contain a new code, which is shown once."""

    remotes: list[RemoteView] = []
    entries: list[EntryView] = []
    line: str = ""
    plan: ErasePlan | None = None
    erasure: Erasure | None = None
    drill: Drill | None = None
    pruning: RemotePruning | None = None
    error: ErrorRecord | None = None
