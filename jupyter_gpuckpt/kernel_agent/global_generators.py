"""New global generators of random numbers for statistics, for a kernel that begins with the variables of another one."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from typing import Any


def seed_anew(names: Iterable[str]) -> list[str]:
    """Seed the global generators of these modules by the operating system: random, numpy, torch. Return the names of those that failed.

    A module that is not loaded stays so: it seeds itself. Generators in variables go on as they were.
    """
    failed = []
    for name in names:
        try:
            module_name, seed = _SEEDS[name]
            if module_name in sys.modules:
                seed(sys.modules[module_name])
        except Exception:  # user code may have replaced what is used here
            failed.append(name)
    return failed


def _seed_numpy(module: Any) -> None:
    # A user may have set another kind of generator, which `seed` refuses.
    fresh = module.RandomState(type(module.get_bit_generator())())
    module.set_state(fresh.get_state(legacy=False))


#: For each name, the module to look for and the function that seeds it.
_SEEDS: dict[str, tuple[str, Callable[[Any], object]]] = {
    "random": ("random", lambda module: module.seed()),
    "numpy": ("numpy.random", _seed_numpy),
    # It seeds the generators of all devices.
    "torch": ("torch", lambda module: module.seed()),
}
