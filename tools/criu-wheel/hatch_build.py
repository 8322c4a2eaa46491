"""Tells hatchling that the wheel holds a program and belongs to one platform."""

import sysconfig
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class ProgramHook(BuildHookInterface):
    """Names the platform; auditwheel replaces it by the oldest one on which the program runs."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Any Python will do, as nothing of it is linked to the program."""
        platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-{platform}"
