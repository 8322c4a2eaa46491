"""A row's work and its tokens, in a kernel or, as a program, in the twin that is never stopped.

python -m workloads.running LOOKS TOLD     TOLD: what the row's trial tells, as JSON. A line of JSON for each look
"""

import importlib
import json
import os
import sys

from .tokens import Tokens


class Running:
    def __init__(self, told):
        if told["gpus"] == 1:  # before the first import of a framework, which would use all
            visible = os.environ.get("CUDA_VISIBLE_DEVICES", "0")
            os.environ["CUDA_VISIBLE_DEVICES"] = visible.partition(",")[0]
        module = importlib.import_module(f"{__package__}.{told['workload']}")
        self.work = module.Work(told["seed"], **told["options"])
        self.tokens = Tokens(told, self.work.arange)

    def look(self):
        counters = getattr(self.work, "counters", dict)()
        return {"tokens": self.tokens.look(), "work": self.work.look(), "counters": counters}


def main():
    running = Running(json.loads(sys.argv[2]))
    for _ in range(int(sys.argv[1])):
        print("look", json.dumps(running.look()), flush=True)
    # A thread that launches kernels would be ended inside of PyTorch's C++ code by an ordinary exit, which aborts.
    os._exit(0)


if __name__ == "__main__":
    main()
