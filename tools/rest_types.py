"""Write the front end's types of REST records from the OpenAPI document: `python tools/rest_types.py`, run by `make front-end`.

With `--check`, as in `make test-node`, fail if the file is not what it would write. It needs node on the PATH and
labextension/node_modules.
"""

import subprocess
import sys
from pathlib import Path

import msgspec

from jupyter_gpuckpt.server.rest.openapi import description
from jupyter_gpuckpt.server.rest.routes import ROUTES

FRONT_END = Path(__file__).parent.parent / "labextension"
TYPES = "src/shared/rest-types.ts"


def main() -> int:
    """Run openapi-typescript with the records alone: the front end names its routes itself."""
    document = {**description(ROUTES), "paths": {}}
    options = ["--root-types", "--root-types-no-schema-prefix", "--output", TYPES]
    return subprocess.run(
        ["jlpm", "openapi-typescript", *options, *sys.argv[1:]],
        cwd=FRONT_END,
        input=msgspec.json.encode(document),
        check=False,
    ).returncode


if __name__ == "__main__":
    sys.exit(main())
