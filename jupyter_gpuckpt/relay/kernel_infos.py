"""What kernels say about themselves, kept by kernelspec: so the relay answers kernel_info before the kernel has started."""

from __future__ import annotations

import hashlib
import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec


class KernelInfos:
    """The replies to kernel_info, in files of `folder`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._known: dict[str, dict[str, Any]] = {}

    def get(self, digest: str) -> dict[str, Any]:
        """Return what a kernel of a kernelspec says about itself; empty if none has said it yet."""
        if digest not in self._known:
            with suppress(OSError, ValueError):
                self._known[digest] = json.loads((self._folder / digest).read_bytes())
        return self._known.get(digest, {})

    def learn(self, digest: str, info: dict[str, Any]) -> None:
        """Keep what a kernel has said, if it has."""
        if not info:
            return
        # Replies of subshells do not come by the shell's socket.
        features = [one for one in info.get("supported_features", []) if one != "kernel subshells"]
        if "supported_features" in info:
            info = {**info, "supported_features": features}
        self._known[digest] = info
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        new = self._folder / f"{digest}.new"
        with suppress(OSError):
            new.write_bytes(msgspec.json.encode(info))
            new.replace(self._folder / digest)


def digest_of(kernelspec: dict[str, Any]) -> str:
    """Return a digest that is equal for equal kernelspecs."""
    return hashlib.sha256(json.dumps(kernelspec, sort_keys=True).encode()).hexdigest()[:32]
