"""Programs that a kernel starts: those with its own interpreter load the ferry library, others do not."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap

import pytest

from jupyter_gpuckpt.engine.tree import ferry_library

pytestmark = pytest.mark.timeout(180)

LIBRARY = str(ferry_library.LIBRARY)
#: Whether the library is in a process, and what it sees of that in its environment.
LOOK = """
import os
def look():
    maps = open("/proc/self/maps").read()
    return "gpu-ferry.so" in maps, os.environ.get("LD_PRELOAD"), os.environ.get("GPUCKPT_FERRY")
"""
TEXT = f"{LOOK}print(*look())"
LOADED, NOT_LOADED = "True None None\n", "False None None\n"


def answer(code: str, folder, **env: str) -> str:
    """Run a program with the library; return what it and the programs that it starts print."""
    preloaded = env.pop("LD_PRELOAD", LIBRARY)
    file = folder / "program.py"
    file.write_text(f"import os, subprocess, sys\nTEXT = {TEXT!r}\n" + textwrap.dedent(code))
    return subprocess.run(
        [sys.executable, file],
        env={**os.environ, **env, "LD_PRELOAD": preloaded, "GPUCKPT_FERRY": str(folder)},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    ).stdout


WAYS = {
    "subprocess": "subprocess.run([sys.executable, '-c', TEXT])",
    "with an environment": "subprocess.run([sys.executable, '-c', TEXT], env={'PATH': os.environ['PATH']})",
    "without one": "subprocess.run([sys.executable, '-c', TEXT], env={})",
    "by name": "subprocess.run([os.path.basename(sys.executable), '-c', TEXT])",
    "by posix_spawn": "os.waitpid(os.posix_spawn(sys.executable, ['p', '-c', TEXT], os.environ), 0)",
    "by posix_spawnp": "os.waitpid(os.posix_spawnp(sys.executable, ['p', '-c', TEXT], os.environ), 0)",
    "in its place": "os.execv(sys.executable, ['p', '-c', TEXT])",
    "in its place with an environment": "os.execve(sys.executable, ['p', '-c', TEXT], {'A': 'b'})",
    "in a forked child": "os.fork() and (os.wait(), os._exit(0)); os.execv(sys.executable, ['p', '-c', TEXT])",
    "by a child of its own": """
        code = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {TEXT!r}])"
        subprocess.run([sys.executable, '-c', code])
    """,
}


@pytest.mark.parametrize("way", WAYS)
def test_a_program_with_the_same_interpreter_loads_it(tmp_path, way):
    path = f"{os.path.dirname(sys.executable)}:{os.environ['PATH']}"
    assert answer(WAYS[way], tmp_path, PATH=path) == LOADED


def test_workers_of_multiprocessing_load_it(tmp_path):
    code = f"""
    import multiprocessing
    {textwrap.indent(LOOK, "    ").strip()}
    def work(_):
        return look()
    if __name__ == "__main__":
        for method in "spawn", "forkserver":
            with multiprocessing.get_context(method).Pool(1) as pool:
                print(*pool.map(work, [0])[0], flush=True)
    """
    assert answer(code, tmp_path) == LOADED * 2


def test_other_programs_do_not_load_it(tmp_path):
    copy = tmp_path / "python"
    copy.write_bytes(b"#!/bin/sh\necho false\n")
    copy.chmod(0o700)
    code = f"""
    shown = "cat /proc/self/maps | grep -c gpu-ferry; echo $LD_PRELOAD $GPUCKPT_FERRY"
    subprocess.run(["sh", "-c", shown])
    subprocess.run(shown, shell=True, env={{"PATH": os.environ["PATH"]}})
    print(os.popen(shown).read(), end="", flush=True)
    subprocess.run([{str(copy)!r}])
    subprocess.run(["sh", "-c", 'exec "$0" -c "$1"', sys.executable, TEXT])
    """
    assert answer(code, tmp_path) == "0\n\n" * 3 + "false\n" + NOT_LOADED


def test_errors_and_other_preloaded_libraries_stay(tmp_path):
    other = tmp_path / "other.so"
    source = "int answer_of_another_library(void) { return 42; }"
    subprocess.run(
        ["gcc", "-shared", "-fPIC", "-x", "c", "-", "-o", other],
        input=source,
        text=True,
        check=True,
    )
    code = f"""
    for call in (lambda: os.execv("/nothing", ["x"]), lambda: os.execve({str(tmp_path)!r}, ["x"], {{}}),
                 lambda: os.posix_spawn("/nothing", ["x"], os.environ)):
        try:
            call()
        except OSError as error:
            print(error.errno)
    print(os.environ["LD_PRELOAD"], flush=True)
    more = "; import ctypes; print(ctypes.CDLL(None).answer_of_another_library())"
    subprocess.run([sys.executable, "-c", TEXT + more])
    subprocess.run([sys.executable, "-c", TEXT], env={{"LD_PRELOAD": "", "GPUCKPT_FERRY": "/mine"}})
    """
    expected = f"2\n13\n2\n{other}\nTrue {other} None\n42\nFalse  /mine\n"
    assert answer(code, tmp_path, LD_PRELOAD=f"{other}:{LIBRARY}") == expected


def test_where_the_library_is_no_more_children_start_without_it(tmp_path):
    copy = tmp_path / "gpu-ferry.so"
    copy.write_bytes(ferry_library.LIBRARY.read_bytes())
    code = f"os.unlink({str(copy)!r}); " + WAYS["subprocess"]
    assert answer(code, tmp_path, LD_PRELOAD=str(copy)) == NOT_LOADED
