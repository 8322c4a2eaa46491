"""A child of a child, both forked after CUDA's start, each with a number of its own; they answer by pipes."""

import os
import random

from .on_torch import TorchWork


def child(seed, depth):
    """Fork a process that answers each byte with a line; its lines tell of its own child, too."""
    questions, ask = os.pipe()
    answer, answers = os.pipe()
    if os.fork():
        os.close(questions)
        os.close(answers)
        return ask, answer
    try:
        os.close(ask)
        os.close(answer)
        numbers = random.Random(seed)
        below = child(seed + 1, depth - 1) if depth > 1 else None
        while os.read(questions, 1):
            line = f"{numbers.random()} {asked(below) if below else ''}"
            os.write(answers, line.strip().encode() + b"\n")
    finally:
        os._exit(0)


def asked(pipes):
    ask, answer = pipes
    os.write(ask, b"?")
    line = b""
    while not line.endswith(b"\n"):
        more = os.read(answer, 1000)
        if not more:
            raise RuntimeError("the child is gone")
        line += more
    return line.decode().strip()


class Work(TorchWork):
    def __init__(self, seed):
        super().__init__(seed)
        self.arange(0, 1000)
        self._child = child(seed, 2)

    def look(self):
        return {**super().look(), "numbers": asked(self._child).split()}
