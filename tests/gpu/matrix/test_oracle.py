"""The rows' own machinery, without a GPU: a kernel with NumPy comes through, and the oracle finds everything that is wrong."""

from __future__ import annotations

import os

import numpy as np
import pytest

from tests.gpu.matrix.rows import MB, Row
from tests.gpu.matrix.workloads import tokens

NUMPY = Row("numpy", "NumPy", "numpy_arrays", needs=("numpy",), gpus=0, gpu_bytes=8 * MB)


def test_a_kernel_without_a_gpu_comes_through_and_one_that_went_astray_does_not(trial):
    with trial(NUMPY) as kernel:
        kernel.check()
        kernel.do("save")
        kernel.check()
        kernel.do("suspend")
        kernel.do("resume")
        kernel.check()
        kernel.cell("running.work.look()")
        with pytest.raises(AssertionError):
            kernel.check()
        assert kernel.line.outcome == "works"
        assert set(kernel.line.seconds) == {"save", "suspend", "resume"}


def test_a_failure_is_told_with_what_everybody_said(trial, capsys):
    with pytest.raises(AssertionError, match="ZeroDivisionError"), trial(NUMPY, looks=1) as kernel:
        kernel.cell("print('said before'); 1 / 0")
    printed = capsys.readouterr().out
    assert "matrix: numpy, 0 GPU(s): fails" in printed
    for part in ("said before", "---- gpuckptd.log", "---- twin", "---- server"):
        assert part in printed
    assert kernel.line.outcome == "fails"


def change(held):
    held._parts[1][12345] ^= 1


def swap_parts(held):
    held._parts[0], held._parts[2] = held._parts[2], held._parts[0]


def swap_two(held):
    part = held._parts[0]
    part[5], part[7] = part[7], part[5]


def lose(held):
    held._parts[2][-512:] = 0


def flip(held):
    held._cpu[-1] ^= 1


def skip_a_line(held):
    os.lseek(held._file, tokens.LINE_BYTES, os.SEEK_CUR)


@pytest.mark.parametrize("damage", [change, swap_parts, swap_two, lose, flip, skip_a_line])
def test_the_oracle_finds_what_is_wrong(damage, tmp_path):
    told = tokens.new(tmp_path / "tokens", 96 * MB)
    held = tokens.Tokens(told, np.arange)
    assert held.look() == tokens.expected(told, 0)
    damage(held)
    assert held.look() != tokens.expected(told, 1)
