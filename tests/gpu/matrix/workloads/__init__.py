"""What the kernels of the matrix run. A copy lies in the notebooks' folder.

Each module of a row has a class `Work(seed, **options)`: `arange(start, stop)`, integers of 64 bits on its GPU, of which the row's
token there is made; `look()`, which goes a step on and tells what must be equal in every process of this seed; and, where
something runs by itself, `counters()`, which must grow from look to look.
"""
