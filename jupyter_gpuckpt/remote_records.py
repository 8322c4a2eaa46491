"""The records of a remote, shared by the command line and the house, and what the two say to each other about remotes."""

from __future__ import annotations

import os
from collections.abc import Mapping
from enum import StrEnum
from urllib.parse import urlsplit

import msgspec

from . import ids
from .errors import ConfigurationError, ErrorRecord

#: What a remote may be told, by the scheme of its URL. Keys and tokens are not among it on purpose.
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
    """What an endpoint did when it was tried. None: it cannot be asked."""

    #: Refuses to write an object that is there.
    create_only: bool
    #: Replaces an object only if it is the one that was read.
    compare_and_swap: bool
    ranges: bool
    lists: bool
    #: Says that an object is missing, rather than that access is denied.
    tells_missing: bool
    deletes: bool
    #: Keeps what was overwritten or deleted.
    versioned: bool | None = None
    #: Refuses to delete objects for a while (Object Lock, immutability policies).
    object_lock: bool | None = None
    #: Deletes objects by itself, or moves them to cold storage.
    life_cycle: bool | None = None
    #: The endpoint's clock minus ours.
    clock_ahead_seconds: float = 0.0
    tried_at: float = 0.0


class HolderKind(StrEnum):
    """Where the secret of a holder of a remote's key comes from."""

    PASSPHRASE = "passphrase"  # noqa: S105 - a word
    #: A program prints it.
    COMMAND = "command"
    FILE = "file"
    #: 24 words on paper.
    RECOVERY = "recovery"


class KeySource(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where this machine has its secret from, so that it can upload by itself: a file or a command."""

    kind: HolderKind = HolderKind.FILE
    path: str = ""
    command: list[str] = []
    holder_id: str = ""


class Remote(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A bucket and prefix where snapshots go. Raises ConfigurationError, from `check`, for what cannot work."""

    name: str
    url: str
    settings: dict[str, str] = {}
    #: Bytes per second; 0: no limit.
    upload_rate: int = 0
    #: Whether snapshots are uploaded by themselves.
    automatic: bool = True
    #: Nothing is uploaded by itself for now: the machine is offline, or pays for what it sends.
    paused: bool = False
    capabilities: Capabilities | None = None
    key: KeySource | None = None

    @property
    def scheme(self) -> str:
        """The kind of the endpoint."""
        return urlsplit(self.url).scheme

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
            # Not repeated in the message: it may be a password or a token.
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
        url = urlsplit(endpoint)
        if url.scheme not in {"http", "https"} or url.username is not None or url.query:
            raise ConfigurationError(
                f"Remote {self.name}: the endpoint has to be http(s)://HOST[:PORT], without credentials."
            )
        if (
            url.scheme == "http"
            and url.hostname not in {"127.0.0.1", "::1", "localhost"}
            and self.settings.get("allow_http") != "true"
        ):
            raise ConfigurationError(
                f"Remote {self.name}: the endpoint would be spoken to without encryption.",
                hint="Use https, or set allow_http=true if nobody else can listen on the way.",
            )


def secrets_in(remote: Remote, environ: Mapping[str, str] = os.environ) -> list[str]:
    """Return the names of the environment's variables that hold a secret for this remote."""
    return [name for name in _SECRET_VARIABLES.get(remote.scheme, ()) if environ.get(name)]


def _invalid_url(name: str, why: str) -> ConfigurationError:
    return ConfigurationError(
        f"The URL of remote {name[:200]} cannot be used: {why}.",
        hint="Examples: s3://bucket/prefix, gs://bucket/prefix, az://container/prefix, file:///mnt/share/folder.",
    )


class RemoteVerb(StrEnum):
    """What can be done with remotes."""

    ADD = "add"
    TEST = "test"
    LIST = "list"
    REMOVE = "remove"
    PAUSE = "pause"
    RESUME = "resume"
    HOLDERS = "holders"
    ADD_HOLDER = "add_holder"
    REMOVE_HOLDER = "remove_holder"
    REKEY = "rekey"


class GivenSecret(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A secret that a user typed or named; a recovery phrase without a text is to be made. Never in a log or an argument list."""

    kind: HolderKind
    text: str = ""
    path: str = ""
    command: list[str] = []

    def __repr__(self) -> str:
        return f"GivenSecret({self.kind})"


class RemoteCall(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What the house is asked to do, in the data directory `data_dir`.

    `remote`: to be added. `name`: of the one that is meant. `secret`: opens its keyring, where this machine's own does not.
    `holder`: of one to be added, and what it is called, or the id of one to be removed.
    """

    verb: RemoteVerb
    data_dir: str
    name: str = ""
    remote: Remote | None = None
    secret: GivenSecret | None = None
    holder: str = ""
    new: GivenSecret | None = None


class RemoteView(msgspec.Struct, frozen=True):
    """A remote as it is shown. With `refusals` it cannot be used; `warnings`: what is given up."""

    remote: Remote
    refusals: list[str] = []
    warnings: list[str] = []


class HolderView(msgspec.Struct, frozen=True):
    """A holder of a remote's key as it is shown. `here`: this machine's own."""

    holder_id: str
    kind: HolderKind
    name: str
    added: float
    here: bool


class RemoteAnswer(msgspec.Struct, frozen=True):
    """What came of it. `recovery_phrase`: a new one, which is shown this once."""

    remotes: list[RemoteView] = []
    holders: list[HolderView] = []
    recovery_phrase: str = ""
    error: ErrorRecord | None = None
