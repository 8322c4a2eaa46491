"""An OCI runtime in front of runc that gives containers of pods the /proc that their manifest asks for, which podman 4.3 does not.

`podman_cluster` passes the manifest's `procMount` as an annotation. Run as `pod_runtime.py ARGUMENT...`, with those of runc.
"""

import json
import os
import sys
from pathlib import Path

ANNOTATION = "procMount"


def main() -> None:
    """Edit the container's configuration before runc creates it, then become runc."""
    words = sys.argv[1:]
    if "create" in words:
        path = Path(words[words.index("--bundle") + 1], "config.json")
        config = json.loads(path.read_text())
        if config.get("annotations", {}).get(ANNOTATION) == "Unmasked":
            config["linux"]["maskedPaths"] = config["linux"]["readonlyPaths"] = []
            path.write_text(json.dumps(config))
    os.execvp("runc", ["runc", *words])


if __name__ == "__main__":
    main()
