"""The spawner for servers that are transient services of systemd."""

from __future__ import annotations

import re
from typing import Any

from systemdspawner import SystemdSpawner

from .spawner import GpuCkptSpawnerMixin

_UNITS = {
    "": 1.0,
    "us": 1e-6, "usec": 1e-6, "ms": 1e-3, "msec": 1e-3,
    "s": 1.0, "sec": 1.0, "second": 1.0, "seconds": 1.0,
    "m": 60.0, "min": 60.0, "minute": 60.0, "minutes": 60.0,
    "h": 3600.0, "hr": 3600.0, "hour": 3600.0, "hours": 3600.0,
    "d": 86400.0, "day": 86400.0, "days": 86400.0,
}  # fmt: skip
_SPAN = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([a-z]*)")


class GpuCkptSystemdSpawner(GpuCkptSpawnerMixin, SystemdSpawner):  # type: ignore[misc]
    """SystemdSpawner with the time that a suspend takes.

    A stop sends its signal to the server alone. By default systemd would send it to all processes of the kernels, too.
    """

    unit_extra_properties: dict[str, Any]

    def check_configuration(self) -> None:
        """Refuse a TimeoutStopSec that is shorter than a suspend may take."""
        properties = self.unit_extra_properties
        for name in ("TimeoutStopSec", "TimeoutSec"):
            if name in properties:
                setting = f'c.SystemdSpawner.unit_extra_properties["{name}"]'
                self.require_time(setting, seconds_of(str(properties[name])))

    def is_on_this_machine(self) -> bool:
        """Return True: systemd runs the hub's machine only."""
        return True

    async def start(self) -> object:
        """Start the service with the time that its stop may take."""
        own = self.unit_extra_properties
        wanted: dict[str, Any] = {"KillMode": "mixed"}
        if "TimeoutSec" not in own:
            wanted["TimeoutStopSec"] = str(self.stop_seconds)
        self.unit_extra_properties = wanted | own
        return await super().start()


def seconds_of(span: str) -> float:
    """Return the seconds of a time span in systemd's form, like `1min 30s`; infinite for any other text and for no limit."""
    text = span.strip()
    parts = _SPAN.findall(text)
    is_span = bool(parts) and not _SPAN.sub("", text).strip()
    if not is_span or any(unit not in _UNITS for _, unit in parts):
        return float("inf")
    # 0 means no limit.
    return sum(float(number) * _UNITS[unit] for number, unit in parts) or float("inf")
