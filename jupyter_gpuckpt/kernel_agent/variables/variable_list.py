"""A list of the user's variables: name, kind, size and a short description of each, without running any code of theirs.

Covers: which names are listed, sizes of Python's own values, of arrays, tables, tensors and images, and of objects that hold such.
Does not cover: whether a value changed (`fingerprints.py`). The server asks for it while a cell may run in another thread; each
value is referenced only while it is examined. Text and bytes are never shown: they may be secrets.
"""

from __future__ import annotations

import sys
import time
import types
from collections.abc import Callable, Collection, Iterator
from typing import Any, NamedTuple

from .fingerprints import Fingerprints
from .values import (
    SEQUENCES,
    SETS,
    attributes,
    bases,
    field,
    items,
    length,
    name_of,
    one_of,
    origin_of,
    own_size,
)

#: The most variables that are listed; if there are more, the biggest are.
MAX_VARIABLES = 1000
#: The most names among which the biggest variables are searched for.
_MAX_NAMES = 10_000
#: The total budget for computing sizes, in CPU seconds; variables beyond it are listed without a size.
_SECONDS = 0.05
#: The number of a container's items that are examined; the others are assumed to be like them.
_SAMPLE = 200
_MAX_OBJECTS = 20_000
_DEEPEST = 24
_LONGEST_NAME, _LONGEST_SUMMARY = 200, 80
_WIDEST_INT_BITS = 128
_COLUMNS_SHOWN = 4

_CODE = (
    types.ModuleType,
    types.FunctionType,
    types.BuiltinFunctionType,
    types.MethodType,
    type,
)
#: Classes of functions that extension modules define.
_CODE_NAMES = frozenset({"ufunc", "_ArrayFunctionDispatcher", "cython_function_or_method"})
_GONE = object()


class Seen(NamedTuple):
    """The size and description of a value. `device`: where its bytes are, if not in RAM, like `cuda:0`."""

    size: float = 0
    device: str = ""
    summary: str = ""


def variables_of(shell: Any, fingerprint_seconds: float) -> dict[str, Any]:
    """Return the variables of IPython's namespace, biggest first: {listed, fingerprints, complete}.

    Fingerprints take at most `fingerprint_seconds` of CPU time, small values first. `complete`: no name is missing.
    """
    deadline = time.thread_time() + _SECONDS
    names = list(_names(shell))
    # A value with a name of its own is not counted again inside other values that refer to it.
    named = {id(_get(shell, name)) for name in names}
    found = [
        {"name": name, **_described(value, deadline, named)}
        for name in names
        if (value := _get(shell, name)) is not _GONE
    ]
    found.sort(key=lambda one: (-one["bytes"], one["name"]))
    del found[MAX_VARIABLES:]
    value = None  # else it would be referenced while others are examined
    fingerprints = {}
    making = Fingerprints(fingerprint_seconds)
    try:
        for name in [one["name"] for one in reversed(found)] if fingerprint_seconds > 0 else ():
            made = making.of(_get(shell, name))
            if made is not None:
                fingerprints[name] = made
    except TimeoutError:
        pass
    complete = len(names) <= MAX_VARIABLES and len(shell.user_ns) <= _MAX_NAMES
    return {"listed": found, "fingerprints": fingerprints, "complete": complete}


def _names(shell: Any) -> Iterator[str]:
    for name in list(dict.keys(shell.user_ns))[:_MAX_NAMES]:
        if type(name) is str and name[:1] != "_" and len(name) <= _LONGEST_NAME:
            value = _get(shell, name)
            if value is not _GONE and not _is_code(value):
                yield name


def _get(shell: Any, name: str) -> Any:
    """Return the value of a name; `_GONE` if the name was deleted, or if IPython has set its value."""
    value = dict.get(shell.user_ns, name, _GONE)
    hidden = getattr(shell, "user_ns_hidden", None)
    given = dict.get(hidden, name, _GONE) if type(hidden) is dict else _GONE
    return _GONE if value is given else value


def _is_code(value: Any) -> bool:
    kinds = bases(value)
    package, name = origin_of(type(value))
    return any(one_of(code, kinds) for code in _CODE) or name in _CODE_NAMES or package == "typing"


def _described(value: Any, deadline: float, named: set[int]) -> dict[str, Any]:
    kind = name_of(type(value))
    look = Look(deadline)
    seen = Seen() if time.thread_time() > deadline else look.at(value, named)
    device = seen.device or look.device
    return {
        "kind": (f"{kind} on {device}" if device else kind)[:_LONGEST_SUMMARY],
        "bytes": int(seen.size),
        "summary": seen.summary[:_LONGEST_SUMMARY],
    }


class Look:
    """An examination of one value and all that it holds, in which each object is counted once."""

    def __init__(self, deadline: float) -> None:
        self._deadline, self._objects = deadline, _MAX_OBJECTS
        self._met: set[int] = set()
        self._on_devices: dict[str, float] = {}
        self._size = 0.0

    @property
    def device(self) -> str:
        """The device that has most of the counted bytes; empty if that is RAM."""
        if not self._on_devices:
            return ""
        device = max(self._on_devices, key=lambda name: self._on_devices[name])
        return device if 2 * self._on_devices[device] > self._size else ""

    def at(self, value: Any, named: Collection[int] = ()) -> Seen:
        """Return the size and description of a value, without the objects inside it whose ids are in `named`."""
        self._met = set(named) - {id(value)}
        seen = self._look(value, _DEEPEST)
        self._size = seen.size
        return seen

    def _look(self, value: Any, depth: int) -> Seen:
        self._objects -= 1
        late = self._objects % 100 == 0 and time.thread_time() > self._deadline
        if id(value) in self._met or depth == 0 or self._objects < 0 or late:
            return Seen()
        self._met.add(id(value))
        kind = type(value)
        try:
            for base in bases(value):
                look = _KNOWN.get(origin_of(base))
                if look is not None:
                    seen = look(self, value, base)
                    break
            else:
                seen = self._plain(value, depth)
        except Exception:  # a library of another version, or a cell that changes the value just now
            seen = Seen()
        if seen.device:
            self._on_devices[seen.device] = self._on_devices.get(seen.device, 0) + seen.size
        if one_of(kind, (bool, float, complex)) or (
            kind is int and value.bit_length() <= _WIDEST_INT_BITS
        ):
            return seen._replace(summary=repr(value))
        return seen

    def sum(self, values: Any, depth: int = _DEEPEST) -> float:
        """Return the size of several values together."""
        return sum(self._look(value, depth).size for value in values)

    def _plain(self, value: Any, depth: int) -> Seen:
        """Examine one of Python's own values, or an object of the user's."""
        kinds = bases(value)
        count = length(value)
        if count is not None:
            return self._container(value, count, depth)
        for kind, unit in ((str, "characters"), (bytes, "bytes"), (bytearray, "bytes")):
            if one_of(kind, kinds):
                return Seen(kind.__sizeof__(value), "", f"{kind.__len__(value)} {unit}")
        if one_of(memoryview, kinds):
            return Seen(value.nbytes, "", f"{value.nbytes} bytes")
        if one_of(int, kinds):
            return Seen(int.__sizeof__(value))
        size = own_size(value)
        kept = attributes(value)
        if kept:
            size += dict.__sizeof__(kept)
            # Attributes are counted like a dictionary's items, but all of them, because models have many.
            size += int(self.sum(list(dict.values(kept)), depth - 1))
        return Seen(size)

    def _container(self, value: Any, count: int, depth: int) -> Seen:
        own = next(k for k in (dict, *SEQUENCES, *SETS) if one_of(k, bases(value)))
        per_item = 2 if own is dict else 1
        held = list(items(value, _SAMPLE))
        # Bytes that sampled tensors have on devices are scaled up by the same factor.
        scale = max(1.0, count * per_item / len(held)) if held else 1.0
        before = dict(self._on_devices)
        inside = self.sum(held, depth - 1) * scale
        for device, size in self._on_devices.items():
            was = before.get(device, 0)
            self._on_devices[device] = was + (size - was) * scale
        size = own_size(value) + inside
        return Seen(size, "", f"{count} item{'s' * (count != 1)}")


# ---- what libraries define: `kind` is the library's own class, value may be of one derived from it ---------------------


def _array(look: Look, value: Any, kind: type) -> Seen:
    dtype, shape = field(value, kind, "dtype"), field(value, kind, "shape")
    size = float(field(value, kind, "nbytes"))
    if dtype.hasobject and not dtype.names:
        count = field(value, kind, "size")
        flat = field(value, kind, "flat")
        sample = list(flat[:: max(1, count // _SAMPLE)])
        size += look.sum(sample) * (count / len(sample) if sample else 0)
    return Seen(size, "", f"{dtype.name} {shape}")


def _scalar(look: Look, value: Any, kind: type) -> Seen:
    if origin_of(type(value))[0] != "numpy":
        return Seen()
    shown = repr(value.item()) if value.dtype.kind in "biufc" else value.dtype.name
    return Seen(value.nbytes, "", shown)


def _gpu_array(look: Look, value: Any, kind: type) -> Seen:
    seen = _array(look, value, kind)
    return seen._replace(device=f"cuda:{field(value, kind, 'device').id}")


def _tensor(look: Look, value: Any, kind: Any) -> Seen:
    torch = sys.modules["torch"]
    # A subclass may intercept every call (`__torch_function__`).
    silence = (
        getattr(torch._C, "DisableTorchFunctionSubclass", None) or torch._C.DisableTorchFunction
    )
    with silence():
        size = kind.numel(value) * kind.element_size(value)
        device, dtype = str(kind.device.__get__(value)), str(kind.dtype.__get__(value))
        shape = tuple(kind.shape.__get__(value))
    on = "" if device == "cpu" else device
    return Seen(size, on, f"{dtype.replace('torch.', '')} {shape}")


def _frame(look: Look, value: Any, kind: type) -> Seen:
    manager = attributes(value)["_mgr"]
    columns, index = manager.axes
    size = look.sum([columns, index, *(block.values for block in manager.blocks)])
    names = [str(name) for name in columns[:_COLUMNS_SHOWN] if type(name) in (str, int)]
    more = ", ..." if len(columns) > _COLUMNS_SHOWN else ""
    shown = f": {', '.join(names)}{more}" if names else ""
    return Seen(size, "", f"{len(index)} x {len(columns)}{shown}")


def _series(look: Look, value: Any, kind: type) -> Seen:
    manager = attributes(value)["_mgr"]
    (index,) = manager.axes
    size = look.sum([index, *(block.values for block in manager.blocks)])
    return Seen(size, "", f"{manager.blocks[0].values.dtype} ({len(index)},)")


def _index(look: Look, value: Any, kind: type) -> Seen:
    # `nbytes` would create the values of a range, or of levels and codes.
    held = attributes(value)
    parts = [held[name] for name in ("_data", "_codes", "_levels") if name in held]
    ours = origin_of(type(value))[0] == "pandas"
    return Seen(look.sum(parts), "", f"{len(value)} items" if ours else "")


def _extension_array(look: Look, value: Any, kind: type) -> Seen:
    if origin_of(type(value))[0] != "pandas":
        return Seen()
    inside = getattr(value, "_ndarray", None)
    size = value.nbytes if inside is None else look.sum([inside])
    return Seen(size, "", f"{value.dtype} ({len(value)},)")


def _polars(look: Look, value: Any, kind: Any) -> Seen:
    shape = field(value, kind, "shape")
    return Seen(kind.estimated_size(value), "", " x ".join(map(str, shape)))


def _arrow(look: Look, value: Any, kind: type) -> Seen:
    shape = (field(value, kind, "num_rows"), field(value, kind, "num_columns"))
    return Seen(field(value, kind, "nbytes"), "", " x ".join(map(str, shape)))


def _image(look: Look, value: Any, kind: type) -> Seen:
    held = attributes(value)
    width, height = held["_size"]
    mode = held.get("_mode") or held.get("mode", "")
    # A file that was only opened has no pixels yet.
    loaded = held.get("_im") if "_im" in held else held.get("im")
    wide = 4 if mode in {"I", "F"} else {"1": 1, "L": 1, "P": 1, "I;16": 2}.get(mode, 4)
    return Seen(
        width * height * wide if loaded is not None else 0, "", f"{mode} {width} x {height}"
    )


def _sparse(look: Look, value: Any, kind: type) -> Seen:
    held = attributes(value)
    arrays = [part for part in held.values() if origin_of(type(part)) == ("numpy", "ndarray")]
    shape = held.get("_shape", ())
    return Seen(
        look.sum(arrays), "", f"{held['data'].dtype.name} {shape}" if "data" in held else ""
    )


#: Functions by package and name of the class. Nothing is imported: a user with such a value has imported the library.
_KNOWN: dict[tuple[str, str], Callable[[Look, Any, Any], Seen]] = {
    ("numpy", "ndarray"): _array,
    ("numpy", "generic"): _scalar,
    ("cupy", "ndarray"): _gpu_array,
    ("torch", "Tensor"): _tensor,
    ("pandas", "DataFrame"): _frame,
    ("pandas", "Series"): _series,
    ("pandas", "Index"): _index,
    ("pandas", "ExtensionArray"): _extension_array,
    ("polars", "DataFrame"): _polars,
    ("pyarrow", "Table"): _arrow,
    ("pyarrow", "RecordBatch"): _arrow,
    ("PIL", "Image"): _image,
    ("scipy", "_spbase"): _sparse,
    ("scipy", "spmatrix"): _sparse,
}
