"""JAX: a function compiled before, one compiled after, random numbers. `gpus`: 2 are used, and arrays go from one to the other."""

import os

from .tokens import PART


class Work:
    def __init__(self, seed, gpus=1):
        os.environ["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"
        import jax  # noqa: PLC0415 - reads these at its import

        jax.config.update("jax_enable_x64", True)
        self._jax = jax
        self._gpus = jax.devices(os.environ.get("MATRIX_DEVICE", "cuda"))[:gpus]
        if len(self._gpus) < gpus:
            raise RuntimeError(f"JAX finds {jax.devices()} only")
        self._key, self._looks = jax.random.key(seed % (1 << 32)), 0
        self._numbers = self.arange(0, 1 << 20)
        self._step = jax.jit(lambda numbers, key: numbers * 3 + jax.random.randint(key, (), 0, 9))
        self._step(self._numbers, self._key).block_until_ready()

    def arange(self, start, stop):
        jax, gpu = self._jax, self._gpus[start // PART % len(self._gpus)]
        return jax.device_put(jax.numpy.arange(start, stop, dtype=jax.numpy.int64), gpu)

    def look(self):
        jax, looks = self._jax, self._looks
        self._looks += 1
        self._key, key = jax.random.split(self._key)
        self._numbers = self._step(self._numbers, key)
        new = jax.jit(lambda numbers: (numbers * (looks + 2)).sum())
        found = {"sum": int(self._numbers.sum()), "new": int(new(self._numbers))}
        if len(self._gpus) > 1:
            there = jax.device_put(self._numbers, self._gpus[1])
            found["there"] = int((there + 1).sum())
            found["back"] = int(jax.device_put(there * 2, self._gpus[0]).sum())
        return found
