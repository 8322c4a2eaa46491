"""Random kills in the middle of cells: of the window, its kernel's program, the relay and the daemon, alone and together."""

import os
import random
import signal
import time

import psutil
import pytest

from .test_windows import COUNT, lines

ROUNDS = int(os.environ.get("GPUCKPT_EDITOR_KILLS", "25"))
VICTIMS = ("window", "program", "relay", "daemon")
LINES = 30


def daemon_of(desk):
    for process in psutil.process_iter():
        try:
            command, env = process.cmdline(), process.environ()
        except psutil.Error:
            continue
        ours = env.get("JUPYTER_GPUCKPT_DATA_DIR") == desk.env["JUPYTER_GPUCKPT_DATA_DIR"]
        if ours and "jupyter_gpuckpt.daemon" in command and "--detach" in command:
            return process
    return None


def kill(desk, window, victim):
    if victim == "window":
        os.killpg(window.process.pid, signal.SIGKILL)
    elif victim == "program":
        os.kill(window.pid, signal.SIGKILL)
    elif victim == "relay":
        desk.kill_relay()
    elif (process := daemon_of(desk)) is not None:
        process.kill()


@pytest.mark.slow
def test_nothing_is_lost_or_doubled_by_random_kills(desk):
    seed = random.randrange(10**6)
    print("seed", seed)
    chosen = random.Random(seed)
    notebook = desk.notebook("kills.ipynb")
    window = desk.window()
    window.start(desk.spec, notebook)
    window.run("count = 0")
    for number in range(ROUNDS):
        victims = [one for one in VICTIMS if chosen.random() < 0.4] or [chosen.choice(VICTIMS)]
        print("round", number, victims, flush=True)
        window.begin("count += 1\n" + COUNT.format(count=LINES, pause=0.03))
        time.sleep(chosen.random())  # any moment will do
        for victim in victims:
            kill(desk, window, victim)
        if {"window", "program"} & {*victims}:
            window.close()
            window = desk.window()
            window.start(desk.spec, notebook)
            assert window.run(f"print(count, {number})")[0] == f"{number + 1} {number}\n"
            printed, outputs = window.run("%gpuckpt output")
            heads = [text for name, text in outputs if name == "stderr"]
            assert printed.endswith(lines(LINES)), (printed, heads)
            # A cell that had ended just before is shown, too.
            assert printed.count("line 0\n") == sum("count += 1" in head for head in heads)
        else:
            assert window.result()[0] == lines(LINES)
            assert window.run("print(count)")[0] == f"{number + 1}\n"
