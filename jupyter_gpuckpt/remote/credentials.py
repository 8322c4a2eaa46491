"""Credentials for S3 from the file of the AWS tools, which obstore does not read.

obstore itself supports the environment, roles of machines and containers, and the chains of other providers. The file is read again
every few minutes, so that a rotated key is used without a restart.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import ConfigurationError

if TYPE_CHECKING:
    import configparser

    from obstore.store import S3Credential

_READ_AGAIN_AFTER = timedelta(minutes=5)
_MAX_FILE_BYTES = 1 << 20


class AwsFile:
    """The credential provider for one profile of the AWS tools' file. obstore calls it again before credentials expire."""

    def __init__(self, path: Path, profile: str) -> None:
        self._path, self._profile = path, profile

    @classmethod
    def find(cls, profile: str, environ: Mapping[str, str] = os.environ) -> AwsFile | None:
        """Return the provider for a profile; None if obstore's own chain applies.

        An empty `profile` means $AWS_PROFILE or `default`; then keys in the environment come first. A named profile comes before them.
        Raises ConfigurationError if a named profile does not exist.
        """
        chosen = profile or environ.get("AWS_PROFILE", "")
        if not profile and environ.get("AWS_ACCESS_KEY_ID"):
            return None
        path = Path(environ.get("AWS_SHARED_CREDENTIALS_FILE") or "~/.aws/credentials").expanduser()
        found = cls(path, chosen or "default")
        if found._section() is not None:
            return found
        if profile:
            raise found._missing()
        return None

    def __call__(self) -> S3Credential:
        """Return the credentials as they are in the file now. Raises ConfigurationError."""
        section = self._section()
        if section is None:
            raise self._missing()
        return {
            "access_key_id": section["aws_access_key_id"],
            "secret_access_key": section["aws_secret_access_key"],
            "token": section.get("aws_session_token") or None,
            "expires_at": datetime.now(UTC) + _READ_AGAIN_AFTER,
        }

    def _section(self) -> configparser.SectionProxy | None:
        import configparser  # noqa: PLC0415 - slow to import, and only remotes need it

        parser = configparser.ConfigParser(interpolation=None)
        try:
            with self._path.open(encoding="utf-8") as file:
                parser.read_string(file.read(_MAX_FILE_BYTES))
            section = parser[self._profile]
            keys = section["aws_access_key_id"], section["aws_secret_access_key"]
        except (OSError, UnicodeDecodeError, configparser.Error, KeyError):
            return None
        return section if all(keys) else None

    def _missing(self) -> ConfigurationError:
        return ConfigurationError(
            f"{self._path} has no credentials for the profile {self._profile}.",
            hint="`aws configure` writes them; the remote's setting `profile` names another.",
        )
