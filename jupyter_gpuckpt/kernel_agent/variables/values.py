"""Examining a user's values without running any code of theirs: not `__len__`, not `__repr__`, not a property.

This module is sent into kernels with the agent, so it uses the standard library only, and imports nothing that the user has not.
A class is recognized by the package and the name of the classes from which it is derived. A value's attributes are read by the
recognized class's own functions, which no subclass can replace.
"""

from __future__ import annotations

import collections
import types
from collections.abc import Iterator
from itertools import islice
from typing import Any

#: Getters of `type` itself, which no metaclass can replace.
_MRO = type.__dict__["__mro__"].__get__
_NAME = type.__dict__["__name__"].__get__
_MODULE = type.__dict__["__module__"].__get__
_BASIC_SIZE = type.__dict__["__basicsize__"].__get__
_NAMESPACE = type.__dict__["__dict__"].__get__

#: Classes of containers; others are derived from these.
SEQUENCES = (list, tuple, collections.deque)
SETS = (set, frozenset)


def one_of(kind: type, kinds: tuple[type, ...]) -> bool:
    """Return whether `kind` is one of `kinds`; `in` would run code of its metaclass."""
    return any(kind is one for one in kinds)


def bases(value: Any) -> tuple[type, ...]:
    """Return the class of a value and all classes from which it is derived."""
    found: tuple[type, ...] = _MRO(type(value))
    return found


def name_of(kind: type) -> str:
    """Return a class's name."""
    return str(_NAME(kind))


def origin_of(kind: type) -> tuple[str, str]:
    """Return the top-level package of a class, and the class's name."""
    try:
        module = _MODULE(kind)
    except AttributeError:
        module = ""
    package = module.partition(".")[0] if type(module) is str else ""
    return package, name_of(kind)


def field(value: Any, kind: type, name: str) -> Any:
    """Return a value's attribute as `kind`, one of its classes, defines it."""
    for base in _MRO(kind):
        found = _NAMESPACE(base).get(name)
        if found is not None:
            return found.__get__(value, kind) if hasattr(type(found), "__get__") else found
    raise AttributeError(name)


def attributes(value: Any) -> dict[str, Any]:
    """Return an object's attributes; empty if it has no dictionary of them, or if its class replaces the dictionary."""
    kept = _attributes(value)
    return {} if kept is None else kept


def _attributes(value: Any) -> dict[str, Any] | None:
    for base in bases(value):
        found = _NAMESPACE(base).get("__dict__")
        if found is not None:
            kept = found.__get__(value) if type(found) is types.GetSetDescriptorType else None
            return kept if type(kept) is dict else None
    return None


def own_size(value: Any) -> int:
    """Return an object's own size in bytes, as the first of its classes that is written in C counts it."""
    for kind in bases(value):
        found = _NAMESPACE(kind).get("__sizeof__")
        if type(found) is types.MethodDescriptorType:
            return int(found(value))
    return int(_BASIC_SIZE(type(value)))


def is_plain(value: Any) -> bool:
    """Return whether an object consists of its attributes only: its classes are written in Python, without slots."""
    slots = any("__slots__" in _NAMESPACE(kind) for kind in bases(value))
    small = _BASIC_SIZE(type(value)) == _BASIC_SIZE(_Plain)
    return small and not slots and _attributes(value) is not None


class _Plain:
    """An empty class, to measure the smallest size of an object."""


def length(value: Any) -> int | None:
    """Return how many items a container has; None for another value."""
    for kind in (dict, *SEQUENCES, *SETS):
        if one_of(kind, bases(value)):
            return int(kind.__len__(value))
    return None


def items(value: Any, max_items: int) -> Iterator[Any]:
    """Yield at most `max_items` items of a container, keys and values of a dictionary. Raises RuntimeError if it changes meanwhile."""
    kinds = bases(value)
    if one_of(dict, kinds):
        for key, held in islice(dict.items(value), max_items):
            yield key
            yield held
        return
    for kind in (*SEQUENCES, *SETS):
        if one_of(kind, kinds):
            yield from islice(kind.__iter__(value), max_items)
            return
