"""The routes about templates."""

from __future__ import annotations

from http import HTTPStatus
from typing import Annotated

import msgspec

from ...wire.calls import Route
from ...wire.manifest_records import MAX_TITLE
from ..rest_records import TemplatesView, TemplateView, error_view
from .rest_handler import GpuCkptHandler, RestRoutes

ROUTES = RestRoutes()


class TemplateRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Body of a new template. `snapshot_id`: the cells that had run then are its recipe. `title`: its name in launchers."""

    name: str
    snapshot_id: str
    title: Annotated[str, msgspec.Meta(max_length=MAX_TITLE)] = ""


@ROUTES.answers(Route(TemplatesView, "GET", "/templates"), _track_activity=False)
async def _templates(handler: GpuCkptHandler) -> TemplatesView:
    """List the templates, with those that are being built, or could not be."""
    found = await handler.parts.templates.listed()
    return TemplatesView(
        templates=[
            TemplateView(
                name=one.name,
                title=one.title,
                is_being_built=one.is_being_built,
                why=one.why,
                error=error_view(one.error) if one.error else None,
            )
            for one in found
        ]
    )


@ROUTES.answers(Route(TemplatesView, "POST", "/templates", TemplateRequest, HTTPStatus.ACCEPTED))
async def _create(handler: GpuCkptHandler, request: TemplateRequest) -> TemplatesView:
    """Start building a template of a snapshot; the list of templates shows its end."""
    await handler.parts.templates.create(request.name, request.title, request.snapshot_id)
    return await _templates(handler)
