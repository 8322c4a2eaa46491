"""Secrets are new in every copy of a program and after every roll back; its statistical random numbers go on as they were."""

from __future__ import annotations

import json
import random
import subprocess
from pathlib import Path

import pytest

from jupyter_gpuckpt.engine.tree import fresh_randomness, launch
from tests.conftest import wait_for

#: For each file `draw-...` it prints what a thread, another one and a forked process draw from both OpenSSLs, and from `random`.
PROGRAM = """
    import glob, hashlib, json, os, queue, random, ssl, threading, time
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import ec, rsa, x25519

    def key(made):
        formats = serialization.Encoding.DER, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        return hashlib.sha256(made.private_bytes(*formats)).hexdigest()

    def hello():
        sent, context = ssl.MemoryBIO(), ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        tls = context.wrap_bio(ssl.MemoryBIO(), sent, server_hostname="localhost")
        try:
            tls.do_handshake()
        except ssl.SSLWantReadError:
            return hashlib.sha256(sent.read()).hexdigest()

    def drawn():
        found = {"bytes": ssl.RAND_bytes(16).hex(), "hello": hello()}
        found["elliptic"] = key(ec.generate_private_key(ec.SECP256R1()))
        found["agreement"] = key(x25519.X25519PrivateKey.generate())
        return found

    def served(asked, answers):
        while asked.get():
            answers.put(drawn())

    asked, answers = queue.Queue(), queue.Queue()
    threading.Thread(target=served, args=(asked, answers), daemon=True).start()
    question, answer = os.pipe(), os.pipe()
    child = os.fork()
    if child == 0:
        drawn()
        while os.read(question[0], 1):
            os.write(answer[1], json.dumps(drawn()).encode())
    drawn(), asked.put(True), answers.get()
    random.seed(1)
    print(json.dumps({"pid": os.getpid(), "child": child}), flush=True)
    while True:
        for name in glob.glob("draw-*"):
            os.unlink(name)
            asked.put(True), os.write(question[1], b"x")
            found = {
                "thread": answers.get(),
                "main": drawn(),
                "child": json.loads(os.read(answer[0], 10_000)),
                "random": random.random(),
                "pids": [os.getpid(), os.getppid(), threading.get_native_id()],
            }
            print(json.dumps(found), flush=True)
        time.sleep(0.01)
"""
WHO = ("thread", "main", "child")


def draw(program):
    count = len(program.lines())
    (Path(program.spec.cwd) / f"draw-{count}").touch()
    return json.loads(program.lines(more_than=count)[count])


def secrets(found) -> list[str]:
    return [value for who in WHO for value in found[who].values()]


@pytest.fixture
def program(run):
    started = run(PROGRAM)
    started.lines()
    return started


def test_copies_draw_other_secrets_and_the_same_statistical_numbers(program) -> None:
    snapshot = program.save().manifest.info.snapshot_id
    copies = [draw(program)]
    for _ in range(2):
        launch.kill(program.tree)
        program.resume(snapshot)
        copies.append(draw(program))
    drawn = [value for found in copies for value in secrets(found)]
    assert len(drawn) == 3 * len(WHO) * 4
    assert len(set(drawn)) == len(drawn)
    assert {found["random"] for found in copies} == {random.Random(1).random()}
    # A program never sees another number than its own.
    [pids] = {tuple(found["pids"]) for found in copies}
    assert pids[0] == pids[2] == json.loads(program.lines()[0])["pid"]


def test_a_snapshot_of_a_resumed_program_is_copied_as_well(program) -> None:
    program.resume(program.save(stop=True).manifest.info.snapshot_id)
    before = draw(program)
    snapshot = program.save(stop=True).manifest.info.snapshot_id
    copies = [before]
    for _ in range(2):
        program.resume(snapshot)
        copies.append(draw(program))
        launch.kill(program.tree)
    drawn = [value for found in copies for value in secrets(found)]
    assert len(set(drawn)) == len(drawn)


def test_without_a_new_number_copies_draw_the_same(program, monkeypatch) -> None:
    """The numbers that the other tests compare would be equal without the repair."""
    monkeypatch.setattr(fresh_randomness, "renew", lambda inside: None)
    snapshot = program.save(stop=True).manifest.info.snapshot_id
    copies = []
    for _ in range(2):
        program.resume(snapshot)
        copies.append(secrets(draw(program)))
        launch.kill(program.tree)
    assert copies[0] == copies[1]


#: Has memory that a fork empties, as BoringSSL and AWS-LC have: a flag, a flag of another library beside it, and what a program keeps.
FLAGS = """
    import mmap, os, time
    pages = mmap.mmap(-1, 3 * 4096, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    pages.madvise(18)  # MADV_WIPEONFORK
    pages[0] = pages[4096] = 1
    pages[8192:8195] = b"\\1ab"
    child = os.fork()
    if child == 0:
        pages[0] = 1
    while True:
        print("child" if child == 0 else "parent", pages[0], pages[4096], pages[8192:8195], flush=True)
        time.sleep(0.01)
"""


def test_a_copy_looks_like_a_fork_to_libraries_that_notice_one(run) -> None:
    program = run(FLAGS)
    before = {r"parent 1 1 b'\x01ab'", r"child 1 0 b'\x00\x00\x00'"}
    wait_for(lambda: before <= set(program.lines()))
    snapshot = program.save().manifest.info.snapshot_id
    wait_for(lambda: before == set(program.lines()[-40:]))
    launch.kill(program.tree)
    after = {r"parent 0 0 b'\x01ab'", r"child 0 0 b'\x00\x00\x00'"}
    for _ in range(2):
        program.resume(snapshot)
        wait_for(lambda: after <= set(program.lines()[-10:]))
        launch.kill(program.tree)


#: Asks three libraries for getpid(): with OpenSSL's generator, with that and Python, and with neither. Then as the agent does.
ASKED = """
    import ctypes, json, os, time
    libraries = {name: ctypes.CDLL(f"./{name}.so") for name in ("openssl", "python", "neither")}
    print("ready", flush=True)
    while not os.path.exists("ask"):
        time.sleep(0.01)
    found = {name: library.asked() == os.getpid() for name, library in libraries.items()}
    draw = ctypes.CDLL(None).gpuckpt_draw
    draw(1)
    found["drawing"] = os.getpid() == int(os.readlink("/proc/self"))
    draw(0)
    found["own"] = os.getpid() == int(os.readlink("/proc/self"))
    print(json.dumps(found), flush=True)
    time.sleep(1000)
"""
TEXTS = {
    "openssl": "providers/implementations/rands/drbg.c",
    "python": "crypto/rand/drbg_lib.c Py_InitializeEx",
    "neither": "drbg.c",
}


def test_only_openssl_and_the_agent_get_a_changed_pid(run, tmp_path) -> None:
    folder = tmp_path / "program-0"
    code = 'int getpid(void); const char *text = "{}"; int asked(void) {{ return getpid() + 0 * *text; }}'
    for name, text in TEXTS.items():
        (tmp_path / f"{name}.c").write_text(code.format(text))
        words = ["cc", "-shared", "-fPIC", "-o", f"{tmp_path}/{name}.so", f"{tmp_path}/{name}.c"]
        subprocess.run(words, check=True)
    program = run(ASKED.replace("./{name}.so", f"{tmp_path}/{{name}}.so"))
    program.lines()
    program.resume(program.save(stop=True).manifest.info.snapshot_id)
    (folder / "ask").touch()
    found = json.loads(program.lines(more_than=1)[1])
    assert found == {
        "openssl": False,
        "python": True,
        "neither": True,
        "drawing": False,
        "own": True,
    }
