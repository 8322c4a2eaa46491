"""Short digests that are equal for equal values; they show whether a variable changed since a snapshot.

Covers: numbers, text, bytes, arrays, tables of pandas, sparse matrices, tensors in RAM; containers and objects that hold nothing
else. Other values, and values that take too long, have no fingerprint: it is not known whether they changed. No code of the
user's is run (`values.py`).
"""

from __future__ import annotations

import datetime as dt
import decimal
import hashlib
import pathlib
import struct
import sys
import time
from collections import Counter, OrderedDict, defaultdict, deque
from typing import Any

from .values import attributes, bases, is_plain, items, length, name_of, one_of, origin_of

#: The most bytes that are read, in total.
_MAX_HASHED_BYTES = 1 << 30
#: The most objects in one value that are examined one by one.
_MAX_OBJECTS = 100_000
#: The most texts or numbers of one list that are examined together.
_MAX_ITEMS = 2_000_000
_DEEPEST = 30
#: The bytes that are read between two checks of the clock.
_PIECE_BYTES = 16 << 20

_CONTAINERS = (list, tuple, dict, set, frozenset, OrderedDict, defaultdict, Counter, deque)
#: Classes whose text contains their whole value. None of them runs foreign code for it.
_TEXTUAL = (
    dt.date,
    dt.timedelta,
    decimal.Decimal,
    pathlib.PosixPath,
    range,
    complex,
    type(None),
    bool,
)


class Fingerprints:
    """A maker of fingerprints with a budget of CPU seconds.

    In the private methods a value that has no fingerprint raises TypeError.
    """

    def __init__(self, seconds: float) -> None:
        self._deadline = time.thread_time() + seconds
        self._bytes, self._objects = _MAX_HASHED_BYTES, _MAX_OBJECTS
        #: The ids of the containers of the object that is being examined, to detect cycles.
        self._open_containers: set[int] = set()

    def of(self, value: Any) -> str | None:
        """Return a value's fingerprint; None if it has none. Raises TimeoutError when the budget is used up."""
        self._look_at_clock()
        digest = _new()
        self._objects = _MAX_OBJECTS
        self._open_containers.clear()
        try:
            self._feed(digest, value, _DEEPEST)
        except TimeoutError:
            raise
        except Exception:  # a library of another version, or a cell that changes the value just now
            return None
        return str(digest.hexdigest()[:32])

    def _feed(self, digest: Any, value: Any, depth: int) -> None:
        self._objects -= 1
        if depth == 0 or self._objects < 0:
            raise TypeError
        if self._objects % 1000 == 0:
            self._look_at_clock()
        kind = type(value)
        digest.update(name_of(kind).encode() + b"\0")
        if kind is str:
            self._feed_bytes(digest, value.encode("utf-8", "surrogatepass"))
        elif kind is bytes or kind is bytearray:
            self._feed_bytes(digest, value)
        elif kind is int:
            self._feed_bytes(
                digest, value.to_bytes(value.bit_length() // 8 + 1, "big", signed=True)
            )
        elif kind is float:
            digest.update(struct.pack("<d", value))
        elif one_of(kind, _TEXTUAL) or (kind is dt.datetime and value.tzinfo is None):
            self._feed_bytes(digest, repr(value).encode())
        elif id(value) in self._open_containers:
            raise TypeError  # a cycle
        else:
            self._open_containers.add(id(value))
            if one_of(kind, _CONTAINERS):
                self._feed_container(digest, value, depth)
            else:
                self._feed_object(digest, value, depth)
            self._open_containers.discard(id(value))

    def _feed_container(self, digest: Any, value: Any, depth: int) -> None:
        count = length(value) or 0
        digest.update(struct.pack("<q", count))
        ordered = one_of(type(value), (list, tuple, deque))
        if ordered and self._feed_together(digest, value):
            return
        if count > self._objects:
            raise TypeError
        if ordered:
            for item in items(value, count):
                self._feed(digest, item, depth - 1)
            return
        # Sets and dictionaries with equal items are equal in any order.
        found, step = list(items(value, count)), 2 if isinstance(value, dict) else 1
        own = [self._digest(found[i : i + step], depth - 1) for i in range(0, len(found), step)]
        digest.update(b"".join(sorted(own)))

    def _digest(self, values: list[Any], depth: int) -> bytes:
        digest = _new()
        for value in values:
            self._feed(digest, value, depth)
        return bytes(digest.digest())

    def _feed_together(self, digest: Any, texts: Any) -> bool:
        """Feed many numbers at once, or texts with gaps (None, NaN); return False if there is anything else among them."""
        count = len(texts)
        # Ids are used because hashing a class would run code of its metaclass.
        kinds = set(map(id, map(type, texts))) if count <= _MAX_ITEMS else set()
        if kinds and kinds <= {id(int), id(float)}:
            self._look_at_clock()
            self._feed_bytes(digest, ",".join(map(repr, texts)).encode())
            return True
        if id(str) not in kinds or not kinds <= {id(str), id(type(None)), id(float)}:
            return False
        self._look_at_clock()
        if len(kinds) > 1:
            gaps = [i for i, text in enumerate(texts) if type(text) is not str]
            for i in gaps:
                self._feed(digest, [i, texts[i]], 2)
            texts = [text if type(text) is str else "" for text in texts]
        digest.update(struct.pack(f"<{count}q", *map(len, texts)))
        self._feed_bytes(digest, "".join(texts).encode("utf-8", "surrogatepass"))
        return True

    def _feed_bytes(self, digest: Any, content: Any) -> None:
        view = memoryview(content).cast("B")
        digest.update(struct.pack("<q", view.nbytes))
        self._feed_view(digest, view)

    def _feed_view(self, digest: Any, view: memoryview) -> None:
        self._bytes -= view.nbytes
        if self._bytes < 0:
            raise TypeError
        for start in range(0, view.nbytes, _PIECE_BYTES):
            if start:
                self._look_at_clock()
            digest.update(view[start : start + _PIECE_BYTES])

    def _look_at_clock(self) -> None:
        if time.thread_time() > self._deadline:
            raise TimeoutError

    # ---- what libraries define ---------------------------------------------------------------------------------------

    def _feed_object(self, digest: Any, value: Any, depth: int) -> None:
        kind = type(value)
        package, name = origin_of(kind)
        origins = {origin_of(base) for base in bases(value)}
        if (package, name) == ("numpy", "ndarray"):
            self._feed_array(digest, value, depth)
        elif package == "numpy" and ("numpy", "generic") in origins and not value.dtype.hasobject:
            digest.update(value.dtype.str.encode())
            self._feed_bytes(digest, value.tobytes())
        elif package == "pandas":
            self._feed_table(digest, value, {name for package, name in origins}, depth)
        elif package == "scipy" and origins & {("scipy", "_spbase"), ("scipy", "spmatrix")}:
            self._feed(digest, attributes(value), depth - 1)
        elif package == "torch" and name in {"Tensor", "Parameter"}:
            self._feed_tensor(digest, value, depth)
        elif is_plain(value):
            digest.update(package.encode())
            self._feed(digest, attributes(value), depth - 1)
        else:
            raise TypeError

    def _feed_array(self, digest: Any, array: Any, depth: int) -> None:
        dtype = array.dtype
        layout = repr(dtype.descr) if dtype.names else dtype.str
        digest.update(f"{layout}{array.shape}\0".encode())
        if dtype.hasobject:
            listed = array.ravel().tolist() if array.size <= _MAX_ITEMS else None
            if dtype.names or listed is None:
                raise TypeError
            self._feed(digest, listed, depth - 1)
            return
        if array.flags.f_contiguous and not array.flags.c_contiguous:
            digest.update(b"T")
            array = array.T
        if array.flags.c_contiguous:
            self._feed_view(digest, memoryview(array.reshape(-1).view("u1")))
            return
        # The array is copied piece by piece, to limit memory.
        rows = max(1, _PIECE_BYTES // max(1, array[:1].nbytes))
        for start in range(0, len(array), rows):
            self._look_at_clock()
            self._feed_view(digest, memoryview(array[start : start + rows].tobytes()))

    def _feed_table(self, digest: Any, value: Any, names: set[str], depth: int) -> None:
        """Feed a pandas frame, series or index by columns, because its layout in memory may change."""
        if "DataFrame" in names:
            manager = value._mgr
            for axis in manager.axes:
                self._feed(digest, axis, depth - 1)
            for column in range(len(manager.axes[0])):
                self._feed(digest, manager.iget_values(column), depth - 1)
        elif "RangeIndex" in names:
            digest.update(repr((value.start, value.stop, value.step)).encode())
        elif "MultiIndex" in names:
            parts = (value.levels, value.codes)
            self._feed(digest, [list(part) for part in parts], depth - 1)
        elif "Series" in names:
            self._feed(digest, [value.index, value._values], depth - 1)
        elif "Index" in names:
            self._feed(digest, value._values, depth - 1)
        else:
            self._feed_extension_array(digest, value, names, depth)
        if names & {"Series", "Index"}:
            self._feed(digest, value.name, depth - 1)

    def _feed_extension_array(self, digest: Any, value: Any, names: set[str], depth: int) -> None:
        if "Categorical" in names:
            self._feed(digest, [value.codes, value.categories, value.ordered], depth - 1)
        elif "BaseMaskedArray" in names:
            self._feed(digest, [value._data, value._mask], depth - 1)
        elif "ArrowExtensionArray" in names:
            for chunk in value._pa_array.chunks:
                digest.update(repr((len(chunk), chunk.offset)).encode())
                for buffer in chunk.buffers():
                    self._feed_bytes(digest, b"" if buffer is None else buffer)
            digest.update(str(value.dtype).encode())
        elif "NDArrayBacked" in names:
            digest.update(str(value.dtype).encode())
            self._feed(digest, value._ndarray, depth - 1)
        elif not names & {"NAType", "NaTType"}:  # these are singletons
            raise TypeError

    def _feed_tensor(self, digest: Any, tensor: Any, depth: int) -> None:
        torch: Any = sys.modules["torch"]
        if tensor.device.type != "cpu" or tensor.layout is not torch.strided:
            raise TypeError  # reading it would need the GPU
        digest.update(f"{tensor.dtype}{tuple(tensor.shape)}\0".encode())
        if not tensor.is_contiguous():
            raise TypeError
        self._feed(digest, tensor.detach().reshape(-1).view(torch.uint8).numpy(), depth - 1)


def _new() -> Any:
    # It is safe against accidents, not attacks, and the fastest on CPUs with instructions for it, as most have.
    if sys.version_info < (3, 9):  # noqa: UP036 - kernels may have an older Python than the server
        return hashlib.sha1()  # noqa: S324 - as above; the argument is newer
    return hashlib.sha1(usedforsecurity=False)
