"""Kill the runner, the daemon, a server beside them, or everything at once, at random; each notebook must end as an undisturbed one.

python -m tests.headless.kills [KILLS] [SEED] [containers]      containers: each run is in one, and it is killed
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from jupyter_gpuckpt.host import criu_program
from tests.conftest import end_everything_below, environment, folder_of_a_daemon
from tests.ports import free_port

from .running import Runner, outputs, write_notebook

#: Cells without effects outside: their outputs depend on everything that was computed before.
CELLS = [
    "import random, time\nstate = random.Random(7)\nseen = []",
    "for _ in range(25):\n    seen.append(state.randrange(1000))\n    print(seen[-1], flush=True)\n    time.sleep(0.08)",
    "from IPython.display import display\nshown = display(0, display_id=True)\n"
    "for n in range(20):\n    shown.update(n + seen[n])\n    time.sleep(0.05)",
    "1 / (seen[0] - seen[0])",
    "def numbers():\n    while True:\n        yield state.random()\ngenerator = numbers()\n[next(generator) for _ in range(3)]",
    "for _ in range(20):\n    print(f'{next(generator):.6f}', flush=True)\n    time.sleep(0.05)\nlen(seen)",
]
TAGS = {3: ["raises-exception"]}
#: Who is killed, and how often of ten times. The server uses the same daemon.
VICTIMS = {"runner": 3, "daemon": 2, "server": 1, "everything": 4}
#: What runs a command as the first process of a container, by its processes: the kernel of Linux kills all when this is killed.
CONTAINER = ("unshare", "--pid", "--fork", "--kill-child", "--mount-proc", "--ipc", "--uts")
#: The longest time before a kill: a run takes about as long, with its start.
_LONGEST_SECONDS = 7.0


def undisturbed(env: dict[str, str], folder: Path) -> list[list[str]]:
    """Return the outputs of a run that nobody disturbs."""
    runner = _new_runner(env, folder)
    status, said = runner.run()
    assert status == 0, said
    return outputs(runner.output)


def kill_at_random(env: dict[str, str], folder: Path, kills: int, seed: int) -> Counter[str]:
    """Kill that often, and compare every notebook that ends; return how often whom."""
    expected = undisturbed(env, folder / "undisturbed")
    chosen, killed, runs = random.Random(seed), Counter[str](), 0
    server = _started_server(env)
    while killed.total() < kills:
        runs += 1
        runner = _new_runner(env, folder / f"run-{runs}")
        runner.start("--lose-at-most", "1s")
        while killed.total() < kills:
            victim = chosen.choices(list(VICTIMS), list(VICTIMS.values()))[0]
            assert runner.process is not None
            if _ends_within(runner, chosen.uniform(0, _LONGEST_SECONDS)):
                break
            killed[victim] += 1
            if victim == "server":
                server.kill()
                server.wait()
                server = _started_server(env)
                continue
            everything = victim == "everything"
            is_daemons = victim == "daemon"
            runner.kill(runner=not is_daemons, daemon=everything or is_daemons, kernel=everything)
            if not is_daemons:
                runner.start("--lose-at-most", "1s")
        _compare(runner, expected, f"run {runs} of seed {seed}, after {killed}")
    server.kill()
    server.wait()
    return killed


def kill_containers(env: dict[str, str], folder: Path, kills: int, seed: int) -> Counter[str]:
    """Run notebooks in containers that are killed that often, and compare every notebook that ends; return how often."""
    expected = undisturbed(env, folder / "undisturbed")
    chosen, killed, runs = random.Random(seed), Counter[str](), 0
    while killed.total() < kills:
        runs += 1
        runner = _new_runner(env, folder / f"run-{runs}")
        runner.start("--lose-at-most", "1s", within=CONTAINER)
        while killed.total() < kills:
            if _ends_within(runner, chosen.uniform(0, _LONGEST_SECONDS)):
                break
            killed["container"] += 1
            runner.kill()
            # A container is started again only when all of its processes have ended; one may have been killed while it was made.
            end_everything_below(runner.data.parent)
            runner.start("--lose-at-most", "1s", within=CONTAINER)
        _compare(runner, expected, f"run {runs} of seed {seed}, after {killed}")
    return killed


def _compare(runner: Runner, expected: list[list[str]], when: str) -> None:
    status, said = runner.ended()
    assert status == 0, f"{when}: {said}"
    found = outputs(runner.output)
    assert found == expected, f"{when}: {found} instead of {expected}"


def _started_server(env: dict[str, str]) -> subprocess.Popen[bytes]:
    words = ["-m", "jupyter_server", "--no-browser", "--ip=127.0.0.1", f"--port={free_port()}"]
    if os.geteuid() == 0:
        words.append("--allow-root")
    return subprocess.Popen([sys.executable, *words], env=env, stderr=subprocess.DEVNULL)


def _ends_within(runner: Runner, seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if runner.process is None or runner.process.poll() is not None:
            return True
        time.sleep(0.01)
    return False


def _new_runner(env: dict[str, str], folder: Path) -> Runner:
    folder.mkdir(parents=True)
    notebook = write_notebook(folder / "notebook.ipynb", CELLS, TAGS)
    return Runner(env, notebook, folder / "out.ipynb")


def main() -> None:
    """Kill as often as the first argument says, by the random numbers of the second."""
    kills = int(sys.argv[1]) if len(sys.argv) > 1 else 50
    seed = int(sys.argv[2]) if len(sys.argv) > 2 else 1
    criu = criu_program.find()
    assert criu is not None
    began = time.monotonic()
    how = kill_containers if "containers" in sys.argv else kill_at_random
    with folder_of_a_daemon() as data, tempfile.TemporaryDirectory() as folder:
        killed = how(environment(criu, data), Path(folder), kills, seed)
    print(f"{killed.total()} kills in {time.monotonic() - began:.0f} s, all as expected: {killed}")


if __name__ == "__main__":
    main()
