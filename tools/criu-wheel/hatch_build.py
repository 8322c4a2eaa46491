"""The build hook by which hatchling marks the wheel for one platform, because it contains a program."""

import sysconfig
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class ProgramHook(BuildHookInterface):
    """A hook that sets the platform; auditwheel replaces it by the oldest one on which the program runs."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Mark the wheel for any Python, because the program is not linked to it, and for this platform."""
        platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-{platform}"
