"""The provider of this machine, as its firmware names it; no request is sent to find it out."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path

from . import aws, azure, gcp
from .endpoints import Endpoint
from .polling import Source

_DMI = Path("/sys/class/dmi/id")
#: All metadata services have this address; no name has to be resolved.
_METADATA = "http://169.254.169.254"
#: The tag of the chassis that all of Azure's machines have.
_AZURE_TAG = "7783-7084-3265-9085-8269-3286-77"

_log = logging.getLogger(__name__)


class Provider(StrEnum):
    """The provider of a machine."""

    AWS = "aws"
    GCP = "gcp"
    AZURE = "azure"
    NONE = "none"


def provider(environ: Mapping[str, str] = os.environ, dmi: Path = _DMI) -> Provider:
    """Return the provider of this machine, or the one that `$JUPYTER_GPUCKPT_RECLAIM_PROVIDER` names."""
    named = environ.get("JUPYTER_GPUCKPT_RECLAIM_PROVIDER", "")
    if named in set(Provider):
        return Provider(named)
    if named:
        known = ", ".join(Provider)
        _log.warning("JUPYTER_GPUCKPT_RECLAIM_PROVIDER is %r; these are known: %s", named, known)
    vendor, board = _read(dmi / "sys_vendor"), _read(dmi / "board_vendor")
    if "Amazon EC2" in {vendor, board}:
        return Provider.AWS
    if _read(dmi / "product_name") == "Google Compute Engine":
        return Provider.GCP
    if _read(dmi / "chassis_asset_tag") == _AZURE_TAG:
        return Provider.AZURE
    return Provider.NONE


def endpoint_url(environ: Mapping[str, str] = os.environ) -> str:
    """Return the URL of the metadata service."""
    return environ.get("JUPYTER_GPUCKPT_RECLAIM_ENDPOINT", "") or _METADATA


def sources(of: Provider, endpoint: Endpoint) -> list[Source]:
    """Return the sources of a provider."""
    if of is Provider.AWS:
        return aws.sources(endpoint)
    if of is Provider.GCP:
        return gcp.sources(endpoint)
    return azure.sources(endpoint) if of is Provider.AZURE else []


def _read(path: Path) -> str:
    try:
        return path.read_text(errors="replace")[:200].strip()
    except OSError:
        return ""
