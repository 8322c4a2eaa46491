"""The digests' code for GPUs, computed here instruction by instruction, beside the implementation that checks it."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import numpy as np
import pytest

from jupyter_gpuckpt.engine.gpu.driver import digests
from jupyter_gpuckpt.engine.gpu.driver.digests import PIECE

SOURCE = Path(digests.__file__).parents[1] / "ferry" / "ferry_digest.c"
PRINTER = """
#include <stdio.h>
#include "{source}"
struct driver driver;
result_t move_file(int file, void *memory, size_t bytes, uint64_t offset, int to_file) {{
    return (void)file, (void)memory, (void)bytes, (void)offset, (void)to_file, 0;
}}
int main(void) {{ return fputs(code, stdout) < 0; }}
"""
WARP = 32
U32, U64 = np.uint32, np.uint64
KEY = digests.key_of(bytes(range(32)))


@pytest.fixture(scope="module")
def code(tmp_path_factory) -> str:
    folder = tmp_path_factory.mktemp("digest")
    program = folder / "print.c"
    program.write_text(PRINTER.format(source=SOURCE))
    subprocess.run(["gcc", "-o", folder / "print", program], check=True)
    return subprocess.run([folder / "print"], check=True, capture_output=True, text=True).stdout


class Warp:
    """The 32 threads of a warp, which are always at the same instruction but for those that have ended."""

    def __init__(self, code: str, memory: dict[int, bytearray], parameters: dict[str, int]) -> None:
        self.memory, self.parameters = memory, parameters
        body = code[code.index("{") + 1 : code.rindex("}")]
        words = [word.strip() for word in re.sub(r"(\w+):", r"\1:;", body).split(";")]
        self.code = [word for word in words if word and not word.startswith(".reg")]
        self.registers: dict[str, np.ndarray] = {}
        self.alive = np.ones(WARP, bool)

    def run(self, block: int, block_threads: int, first_thread: int) -> None:
        ones = np.ones(WARP, U64)
        self.registers |= {
            "%ctaid.x": ones * U64(block),
            "%ntid.x": ones * U64(block_threads),
            "%tid.x": U64(first_thread) + np.arange(WARP, dtype=U64),
        }
        at = 0
        while at < len(self.code) and self.alive.any():
            at = self.step(self.code[at], at)

    def value(self, name: str) -> np.ndarray:
        return self.registers[name] if name[0] == "%" else np.full(WARP, int(name) % 2**64, U64)

    def step(self, line: str, at: int) -> int:
        if line.endswith(":"):
            return at + 1
        active = self.alive
        if line.startswith("@"):
            active = active & self.registers["%p"]
            line = line.split(" ", 1)[1]
        if line == "ret":
            self.alive = self.alive & ~active
            return at + 1
        name, rest = line.split(" ", 1)
        if name == "bra":
            assert active[self.alive].all() or not active.any(), "the warp goes two ways"
            return self.code.index(f"{rest}:") if active.any() else at + 1
        words = re.findall(r"\{[^}]*\}|\[[^]]*\]|[^\s,]+", rest)
        self.execute(name, words)
        return at + 1

    def execute(self, name: str, words: list[str]) -> None:  # noqa: PLR0912
        low = U64(0xFFFFFFFF)
        kind = name.rsplit(".", 1)[-1]
        wrap = low if kind in ("u32", "b32") else U64(0xFFFFFFFFFFFFFFFF)
        to, *others = words
        match name.split(".", maxsplit=1)[0]:
            case "ld" if ".param" in name:
                self.registers[to] = np.full(WARP, self.parameters[others[0][1:-1]], U64)
            case "ld":
                for number, register in enumerate(to[1:-1].split(", ")):
                    self.registers[register] = np.array(
                        [self.load(a + 4 * number) for a in self.addresses(others[0])], U64
                    )
            case "st":
                for number, register in enumerate(others[0][1:-1].split(", ")):
                    for ferry in np.flatnonzero(self.alive):
                        place = self.addresses(to)[ferry] + 8 * number
                        self.store(place, int(self.registers[register][ferry]))
            case "cvta":
                self.registers[to] = self.value(others[0])
            case "mov" if to[0] == "{":
                found = self.value(others[0])
                x, y = to[1:-1].split(", ")
                self.registers[x], self.registers[y] = found & low, found >> U64(32)
            case "mov" if others[0][0] == "{":
                x, y = map(self.value, others[0][1:-1].split(", "))
                self.registers[to] = x | y << U64(32)
            case "mov":
                self.registers[to] = self.value(others[0]) & wrap
            case "add":
                self.registers[to] = (self.value(others[0]) + self.value(others[1])) & wrap
            case "and":
                self.registers[to] = self.value(others[0]) & self.value(others[1])
            case "shr":
                self.registers[to] = self.value(others[0]) >> self.value(others[1])
            case "mul":
                assert name == "mul.wide.u32"
                self.registers[to] = self.value(others[0]) * self.value(others[1])
            case "mad":
                product = self.value(others[0]) * self.value(others[1]) + self.value(others[2])
                self.registers[to] = product & (low if ".lo" in name else U64(0xFFFFFFFFFFFFFFFF))
            case "setp":
                x, y = map(self.value, others)
                compare = {"ge": np.greater_equal, "lt": np.less, "ne": np.not_equal}
                self.registers[to] = compare[name.split(".")[1]](x, y)
            case "shfl":
                assert name == "shfl.sync.down.b32"
                found, distance = self.value(others[0]), int(others[1])
                self.registers[to] = np.append(found[distance:], found[WARP - distance :])
            case _:
                raise AssertionError(f"an unknown instruction: {name}")

    def addresses(self, word: str) -> list[int]:
        register, _, offset = word[1:-1].partition("+")
        return [int(found) + int(offset or 0) for found in self.registers[register]]

    def _place(self, address: int) -> tuple[bytearray, int]:
        base = max(begin for begin in self.memory if begin <= address)
        return self.memory[base], address - base

    def load(self, address: int) -> int:
        memory, at = self._place(address)
        assert at + 4 <= len(memory), "it reads beyond its memory"
        return int.from_bytes(memory[at : at + 4], "little")

    def store(self, address: int, value: int) -> None:
        memory, at = self._place(address)
        assert at + 8 <= len(memory), "it writes beyond its memory"
        memory[at : at + 8] = value.to_bytes(8, "little")


def test_a_warp_computes_the_digest_of_its_piece_and_nothing_else(code):
    pieces = np.random.default_rng(1).integers(0, 1 << 32, (3, PIECE // 4), U32)
    pieces[1, :] = 0xFFFFFFFF  # every sum wraps around
    memory = {1 << 32: bytearray(pieces), 2 << 32: bytearray(KEY), 3 << 32: bytearray(3 * 32)}
    places = {"memory": 1 << 32, "key": 2 << 32, "digests": 3 << 32, "count": 3}
    with np.errstate(over="ignore"):
        for block, thread in (
            (0, 32),
            (1, 0),
            (1, 32),
        ):  # pieces 1 and 2, and one that is not there
            Warp(code, memory, places).run(block, 64, thread)
        expected = [
            bytes(32),
            *(digests.digest(one.tobytes(), KEY).tobytes() for one in pieces[1:]),
        ]
    assert bytes(memory[3 << 32]) == b"".join(expected)


def test_a_digest_depends_on_every_word_and_on_the_key():
    piece = np.random.default_rng(2).integers(0, 256, PIECE, np.uint8)
    before = digests.digest(piece.tobytes(), KEY)
    other = digests.digest(piece.tobytes(), digests.key_of(bytes(32)))
    assert (before != other).all()
    for at in (0, 5, PIECE // 2 + 4, PIECE - 1):
        changed = piece.copy()
        changed[at] ^= 1
        assert (digests.digest(changed.tobytes(), KEY) != before).all()


def test_the_library_and_this_package_agree_on_the_lengths():
    source = SOURCE.read_text()
    assert "#define DIGESTED_BYTES (64UL << 10)" in source
    assert PIECE == 64 << 10
    assert f"#define DIGEST_BYTES {digests.DIGEST_BYTES}UL" in source
    assert "#define KEY_BYTES (DIGESTED_BYTES + 32)" in source
    assert len(KEY) == PIECE + 32


def test_digests_that_were_not_computed_are_refused():
    good = bytes(range(64))
    assert digests.parsed(good).shape == (2, 4)
    with pytest.raises(digests.UnreliableDigestsError):
        digests.parsed(good[:32] + b"\xff" * 32)
