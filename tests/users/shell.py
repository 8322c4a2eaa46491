"""A Python shell of another user: runs the code that comes as lines of JSON, and answers with what became of it.

`python -m tests.as_user python -m tests.users.shell`, see conftest.py.
"""

from __future__ import annotations

import json
import sys
import traceback
from typing import Any


def main() -> None:
    """Run code until the end of standard input. The value of `result` in it is the answer."""
    known: dict[str, Any] = {}
    answers = sys.stdout
    sys.stdout = sys.stderr
    for line in sys.stdin:
        known["result"] = None
        try:
            exec(json.loads(line), known)
        except BaseException as error:
            answer = {
                "error": type(error).__name__,
                "text": str(error),
                "trace": traceback.format_exc(),
            }
        else:
            answer = {"result": known["result"]}
        print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    main()
