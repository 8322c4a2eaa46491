"""What the agent tells of variables: sizes, words, fingerprints, and that it runs nobody's code for that."""

import array
import collections
import datetime as dt
import decimal
import importlib.util
import io
import itertools
import sys
import time
import types

import numpy as np
import pandas as pd
import pytest

from jupyter_gpuckpt.kernel_agent.variables.fingerprints import Fingerprints
from jupyter_gpuckpt.kernel_agent.variables.variable_list import MAX_VARIABLES, variables_of


def numbered():
    """Ids for parameters whose text says little."""
    numbers = itertools.count()
    return lambda _: str(next(numbers))


def told(fingerprint_seconds=0.0, **namespace):
    """Return the records of these variables, by name."""
    shell = types.SimpleNamespace(user_ns=namespace, user_ns_hidden={})
    found = variables_of(shell, fingerprint_seconds)
    return {variable["name"]: variable for variable in found["listed"]}


def fingerprint(value):
    return Fingerprints(10).of(value)


class Model:
    """As many users' classes are: it holds arrays somewhere."""

    def __init__(self, count=100_000):
        self.layers = {"first": [np.zeros(count)], "second": (np.zeros(count), "name")}


class Slotted:
    __slots__ = ("x",)


class Meta(type):
    """A class's class that answers nothing."""

    def __eq__(cls, other):
        raise AssertionError("asked")

    def __hash__(cls):
        raise AssertionError("asked")

    def __getattribute__(cls, name):
        raise AssertionError(name)


class Silent(metaclass=Meta):
    """A class of which nobody may ask anything."""

    def refuse(self, *args):
        raise AssertionError("asked")

    __len__ = __iter__ = __repr__ = __str__ = __sizeof__ = __hash__ = __eq__ = __bool__ = refuse
    __getattr__ = __class__ = __dict__ = property(refuse)


SILENT = Silent()


class SilentList(list):
    """A list with ways of its own."""

    def refuse(self, *args):
        raise AssertionError("asked")

    __len__ = __iter__ = __getitem__ = __repr__ = __sizeof__ = __eq__ = refuse


class SilentArray(np.ndarray):
    """An array with ways of its own."""

    @property
    def nbytes(self):
        raise AssertionError("asked")

    shape = dtype = size = nbytes


def test_no_code_of_a_value_runs():
    values = {
        "one": SILENT,
        "some": SilentList([SILENT, 1]),
        "array": np.zeros(3).view(SilentArray),
    }
    values["inside"] = [SILENT, {1: SILENT}, types.SimpleNamespace(a=SILENT)]
    found = told(1.0, **values)
    assert {name: found[name]["kind"] for name in ("one", "some", "array")} == {
        "one": "Silent",
        "some": "SilentList",
        "array": "SilentArray",
    }
    assert found["some"]["summary"] == "2 items"
    assert found["array"]["bytes"] == 24
    assert all(fingerprint(value) is None for value in values.values())


def test_code_and_what_is_hidden_is_no_variable():
    shell = types.SimpleNamespace(
        user_ns={"_1": 1, "In": [], "np": np, "f": len, "C": Model, "m": [].append, "sin": np.sin}
        | {"lazy": lambda: 1, "mine": 1, "exit": 2},
        user_ns_hidden={"In": [], "exit": 2},
    )
    shell.user_ns_hidden["In"] = shell.user_ns["In"]
    assert [variable["name"] for variable in variables_of(shell, 0)["listed"]] == ["mine"]
    # A user who takes a name of IPython's has a variable.
    shell.user_ns["exit"] = "now mine"
    assert {variable["name"] for variable in variables_of(shell, 0)["listed"]} == {"mine", "exit"}


FRAME = pd.DataFrame({"a": range(1000), "b": 1.5, "c": "x", "d": pd.Timestamp(0), "e": None})


@pytest.mark.parametrize(
    ("value", "kind", "summary"),
    [
        (7, "int", "7"),
        (1 << 300, "int", ""),
        (0.5, "float", "0.5"),
        (True, "bool", "True"),
        (None, "NoneType", ""),
        ("secret", "str", "6 characters"),
        (b"secret", "bytes", "6 bytes"),
        ([1, 2], "list", "2 items"),
        ({1: 2}, "dict", "1 item"),
        (collections.Counter("aab"), "Counter", "2 items"),
        (np.float32(0.5), "float32", "0.5"),
        (np.zeros((2, 3), "i4"), "ndarray", "int32 (2, 3)"),
        (FRAME, "DataFrame", "1000 x 5: a, b, c, d, ..."),
        (FRAME["b"], "Series", "float64 (1000,)"),
        (FRAME["c"], "Series", "str (1000,)"),
        (pd.RangeIndex(10**12), "RangeIndex", f"{10**12} items"),
        (Model(), "Model", ""),
        ((i for i in "ab"), "generator", ""),
    ],
    ids=numbered(),
)
def test_a_variable_has_a_kind_and_a_few_words(value, kind, summary):
    found = told(x=value)["x"]
    assert (found["kind"], found["summary"]) == (kind, summary)
    assert isinstance(found["bytes"], int)
    assert 0 <= found["bytes"] < 10**8


@pytest.mark.parametrize(
    ("value", "size"),
    [
        (Model(), 2_400_000),
        ([np.zeros(1000) for _ in range(1000)], 8_000_000),
        ([f"{i:040}" for i in range(100_000)], 100_000 * (89 + 8)),
        ({i: i for i in range(1000, 101_000)}, 100_000 * (28 + 52)),
        (pd.DataFrame({"a": np.zeros(100_000), "b": np.zeros(100_000)}), 1_600_000),
        (pd.Series([f"{i:040}" for i in range(10_000)], dtype=object), 10_000 * (89 + 8)),
        (np.zeros(1_000_000), 8_000_000),
        (bytearray(1_000_000), 1_000_000),
        (array.array("d", bytes(8_000_000)), 8_000_000),
        (
            collections.OrderedDict.fromkeys(range(1000, 101_000)),
            sys.getsizeof(collections.OrderedDict.fromkeys(range(100_000))) + 2_800_000,
        ),
        (io.BytesIO(bytes(1_000_000)), 1_000_000),
    ],
    ids=numbered(),
)
def test_sizes_are_about_right(value, size):
    assert told(x=value)["x"]["bytes"] == pytest.approx(size, rel=0.35)


def test_what_is_held_twice_counts_once_and_circles_end():
    held = np.zeros(1000)
    circle = [held, held]
    circle.append(circle)
    assert 8000 <= told(x=circle)["x"]["bytes"] < 9000
    assert fingerprint(circle) is None


def test_images_are_as_large_as_their_pixels():
    image = pytest.importorskip("PIL.Image")
    found = told(x=image.new("RGB", (100, 50)))["x"]
    assert (found["kind"], found["bytes"], found["summary"]) == ("Image", 20_000, "RGB 100 x 50")


#: Of each the second differs from the first.
PAIRS = [
    (1, 2),
    (1, 1.0),
    (1, True),
    (0.0, -0.0),
    ("1", 1),
    ("a", b"a"),
    ([1, 2], [2, 1]),
    ([1, 2], (1, 2)),
    ([[1], 2], [[1, 2]]),
    (["a", "bc"], ["ab", "c"]),
    (["a", None], [None, "a"]),
    ({"a": 1}, {"a": 2}),
    ({1, 2}, {1, 3}),
    ({"a": [1, {"b": None}]}, {"a": [1, {"b": 0}]}),
    (collections.deque([1]), collections.deque([2])),
    (np.arange(10), np.arange(10)[::-1]),
    (np.zeros(4), np.zeros((2, 2))),
    (np.zeros(2, "f4"), np.zeros(1, "f8")),
    (np.array(["a", 1], object), np.array(["a", 2], object)),
    (np.array([1], "M8[s]"), np.array([1], "M8[ms]")),
    (np.zeros(1, [("a", "i4")]), np.zeros(1, [("b", "i4")])),
    (np.float64(1), np.float64(2)),
    (pd.Series([1, None]), pd.Series([1, 2])),
    (pd.Series([1], name="a"), pd.Series([1], name="b")),
    (pd.Series([1], index=[1]), pd.Series([1], index=[2])),
    (pd.Series(["a", None]), pd.Series(["a", "b"])),
    (pd.Series(["a"], dtype="category"), pd.Series(["b"], dtype="category")),
    (pd.Series([1, None], dtype="Int64"), pd.Series([1, 2], dtype="Int64")),
    (pd.DataFrame({"a": [1]}), pd.DataFrame({"b": [1]})),
    (pd.DataFrame({"a": [1], "b": ["x"]}), pd.DataFrame({"a": [1], "b": ["y"]})),
    (pd.date_range("2020", periods=2), pd.date_range("2021", periods=2)),
    (pd.RangeIndex(3), pd.RangeIndex(4)),
    (pd.MultiIndex.from_tuples([(1, 2)]), pd.MultiIndex.from_tuples([(1, 3)])),
    (dt.date(2020, 1, 1), dt.date(2020, 1, 2)),
    (decimal.Decimal("1.0"), decimal.Decimal("1.00")),
    (Model(2), Model(3)),
]


@pytest.mark.parametrize(("one", "other"), PAIRS, ids=numbered())
def test_equal_values_have_equal_fingerprints_and_others_have_not(one, other):
    assert fingerprint(one) == fingerprint(copied(one))
    assert fingerprint(other) == fingerprint(copied(other))
    assert fingerprint(one) != fingerprint(other)
    assert None not in (fingerprint(one), fingerprint(other))


def copied(value):
    """Return an equal value that shares nothing with it, and lies elsewhere in memory."""
    if isinstance(value, np.ndarray):
        return np.concatenate([value, value])[: len(value)].copy()
    if isinstance(value, dict):
        return dict(reversed([(key, copied(held)) for key, held in value.items()]))
    if isinstance(value, list | tuple):
        return type(value)(copied(held) for held in value)
    return value.copy() if hasattr(value, "copy") else value


def test_how_an_array_lies_in_memory_is_no_difference():
    wide = np.arange(30_000.0).reshape(100, 300)
    strided = np.repeat(wide, 2, axis=1)[:, ::2]
    assert not strided.flags.c_contiguous
    assert fingerprint(strided) == fingerprint(wide)
    frame = pd.DataFrame(wide)
    assert fingerprint(frame) == fingerprint(pd.DataFrame({i: wide[:, i] for i in range(300)}))


@pytest.mark.parametrize(
    "value",
    [
        Slotted(),
        [Slotted()],
        iter([]),
        array.array("d"),
        np.random.default_rng(0),
        np.zeros(3).view(np.recarray),
        dt.datetime.now(tz=dt.UTC),
        time.sleep,
    ],
    ids=numbered(),
)
def test_what_nobody_knows_has_no_fingerprint(value):
    assert fingerprint(value) is None


def test_fingerprints_take_no_longer_than_they_may():
    namespace = {f"x{i}": np.ones(4_000_000) for i in range(8)} | {"small": 1}
    shell = types.SimpleNamespace(user_ns=namespace, user_ns_hidden={})
    found = variables_of(shell, 0.02)
    # What is small comes first; the rest takes ten times as long.
    assert "small" in found["fingerprints"]
    assert len(found["fingerprints"]) < 9
    assert len(found["listed"]) == 9


def test_of_very_many_variables_the_biggest_are_told():
    namespace = {f"x{i}": "x" * i for i in range(MAX_VARIABLES + 5)}
    shell = types.SimpleNamespace(user_ns=namespace, user_ns_hidden={})
    found = variables_of(shell, 0)
    assert not found["complete"]
    assert len(found["listed"]) == MAX_VARIABLES


@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed")
def test_tensors_and_what_is_made_of_them():
    import torch  # noqa: PLC0415 - skipped where it is not installed

    model = torch.nn.Sequential(torch.nn.Linear(1000, 1000), torch.nn.ReLU())
    found = told(x=torch.zeros(10, 20, dtype=torch.bfloat16), model=model)
    assert found["x"]["bytes"] == 400
    assert (found["x"]["kind"], found["x"]["summary"]) == ("Tensor", "bfloat16 (10, 20)")
    assert found["model"]["kind"] == "Sequential"
    assert found["model"]["bytes"] == pytest.approx(4_004_000, rel=0.05)
    before = fingerprint(model)
    assert fingerprint(torch.ones(3)) != fingerprint(torch.zeros(3))
    if before is not None:
        with torch.no_grad():
            model[0].bias[3] += 1
        assert fingerprint(model) != before


def test_what_has_a_name_of_its_own_is_counted_once():
    values = np.zeros(1_000_000)
    found = told(values=values, thread={"arguments": [values]}, again=values)
    assert found["values"]["bytes"] == found["again"]["bytes"] >= values.nbytes
    assert found["thread"]["bytes"] < 1000
