"""Print the OpenAPI description of the REST interface."""

import sys

import msgspec

from .openapi import description
from .routes import ROUTES

sys.stdout.buffer.write(msgspec.json.format(msgspec.json.encode(description(ROUTES))) + b"\n")
