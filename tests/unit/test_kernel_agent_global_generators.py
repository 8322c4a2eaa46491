"""Global generators of random numbers in a kernel that begins with the variables of another one."""

import random
import subprocess
import sys

import numpy as np
import pytest

from jupyter_gpuckpt.kernel_agent.global_generators import seed_anew


@pytest.fixture(autouse=True)
def states():
    """Put the global generators back as they were."""
    mine, of_numpy = random.getstate(), np.random.get_state()
    yield
    random.setstate(mine)
    np.random.set_state(of_numpy)


def test_global_generators_are_new_and_those_in_variables_go_on():
    own, of_numpy = random.Random(1), np.random.default_rng(1)
    drawn = set()
    for _ in range(3):
        random.seed(1)
        np.random.seed(1)
        random.gauss(), np.random.standard_normal()  # each keeps a number for its next call
        assert seed_anew(["random", "numpy"]) == []
        drawn |= {random.gauss(), float(np.random.standard_normal())}
    assert len(drawn) == 6
    assert own.random() == random.Random(1).random()
    assert of_numpy.random() == np.random.default_rng(1).random()


def test_only_what_was_named_is_seeded():
    random.seed(1)
    np.random.seed(1)
    assert seed_anew(["numpy"]) == []
    assert random.random() == random.Random(1).random()
    assert seed_anew(["random", "no such module"]) == ["no such module"]
    assert random.random() != random.Random(1).random()


#: Sets another kind of generator for NumPy's global functions, which cannot be seeded by them, as a user may.
OTHER_KIND = """
import numpy as np
from jupyter_gpuckpt.kernel_agent.global_generators import seed_anew
drawn = set()
for _ in range(3):
    np.random.set_bit_generator(np.random.PCG64(1))
    assert seed_anew(["numpy"]) == []
    drawn.add(np.random.random())
assert len(drawn) == 3
"""

#: Draws from the generators of the processor and of the GPU, if there is one.
TORCH = """
import torch
from jupyter_gpuckpt.kernel_agent.global_generators import seed_anew
own, drawn = torch.Generator().manual_seed(1), []
devices = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]
for _ in range(3):
    torch.manual_seed(1)
    assert seed_anew(["torch"]) == []
    drawn += [torch.rand(1, device=device).item() for device in devices]
assert len(set(drawn)) == 3 * len(devices)
assert torch.rand(1, generator=own) == torch.rand(1, generator=torch.Generator().manual_seed(1))
"""


def test_another_kind_of_generator_is_seeded_as_well():
    subprocess.run([sys.executable, "-c", OTHER_KIND], check=True)


def test_generators_of_all_devices_are_seeded():
    pytest.importorskip("torch")
    subprocess.run([sys.executable, "-c", TORCH], check=True)


def test_what_is_not_loaded_is_not_loaded():
    code = (
        "import sys; from jupyter_gpuckpt.kernel_agent.global_generators import seed_anew; "
        "seed_anew(['random', 'numpy', 'torch']); assert not {'random', 'numpy', 'torch'} & {*sys.modules}"
    )
    subprocess.run([sys.executable, "-S", "-c", code], check=True)
