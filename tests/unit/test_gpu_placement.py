"""Where GPU memory goes that comes back."""

import pytest

from jupyter_gpuckpt.engine.gpu.placement import UNKNOWN, place, reserved, together, visible
from jupyter_gpuckpt.wire.manifest_records import Gpu

GB = 1 << 30
A, B, C = (Gpu(f"GPU-{letter}", "H200", 140 * GB) for letter in "abc")
SMALL = Gpu("GPU-small", "L4", 24 * GB)


def test_what_fits_stays_where_it_was():
    found = place({A.uuid: 5 * GB}, [A, B], [A, B], {A.uuid: 6 * GB, B.uuid: 100 * GB})
    assert (found.gpu_map, found.shortage) == ({}, "")


def test_what_does_not_fit_goes_to_the_emptiest_of_its_model_and_every_gpu_has_a_partner():
    free = {A.uuid: GB, B.uuid: 9 * GB, C.uuid: 20 * GB, SMALL.uuid: 24 * GB}
    found = place({A.uuid: 5 * GB}, [A, B, C], [A, B, C, SMALL], free)
    assert found.gpu_map == {A.uuid: C.uuid, B.uuid: B.uuid, C.uuid: A.uuid}
    assert not found.shortage


def test_another_machine_has_other_gpus():
    found = place({A.uuid: 5 * GB}, [A], [B], {B.uuid: 9 * GB})
    assert (found.gpu_map, found.shortage) == ({A.uuid: B.uuid}, "")


def test_two_gpus_are_swapped_where_that_makes_room():
    needs = {A.uuid: 8 * GB, B.uuid: 2 * GB}
    found = place(needs, [A, B], [A, B], {A.uuid: 3 * GB, B.uuid: 9 * GB})
    assert found.gpu_map == {A.uuid: B.uuid, B.uuid: A.uuid}
    assert not found.shortage


def test_a_shortage_names_what_is_needed_and_free():
    found = place({A.uuid: 8 * GB}, [A], [A, SMALL], {A.uuid: 3 * GB, SMALL.uuid: 24 * GB})
    assert (found.needed_bytes, found.free_bytes) == (8 * GB, 3 * GB)
    assert found.shortage == "8192 MB of GPU memory are needed, 3072 MB are free."


def test_no_gpu_of_the_model_is_no_room():
    assert place({A.uuid: GB}, [A], [SMALL], {SMALL.uuid: 24 * GB}).shortage
    assert place({A.uuid: GB}, [A], [], {}).shortage


def test_a_few_megabytes_make_no_other_model_and_half_the_memory_does():
    ecc, half = (Gpu("GPU-other", A.name, size) for size in (139 * GB, 70 * GB))
    assert not place({A.uuid: GB}, [A], [ecc], {ecc.uuid: 9 * GB}).shortage
    assert place({A.uuid: GB}, [A], [half], {half.uuid: 9 * GB}).shortage


def test_only_allowed_ones_are_chosen():
    free = {A.uuid: 9 * GB, B.uuid: 9 * GB}
    found = place({A.uuid: 5 * GB}, [A, B], [A, B], free, allowed={B.uuid})
    assert found.gpu_map == {A.uuid: B.uuid, B.uuid: A.uuid}
    assert place({A.uuid: 5 * GB}, [A, B], [A, B], free, allowed=set()).shortage


def test_of_unknown_gpus_the_emptiest_counts():
    free = {A.uuid: GB, B.uuid: 9 * GB}
    assert not place({UNKNOWN: 5 * GB}, [A, B], [A, B], free).shortage
    assert place({UNKNOWN: 10 * GB}, [A, B], [A, B], free).shortage
    assert not place({}, [A], [A], {}).shortage


def test_what_is_reserved_is_not_free_for_the_next():
    free, needs = {A.uuid: 9 * GB}, {A.uuid: 5 * GB}
    first = place(needs, [A], [A], free)
    left = reserved(free, needs, first)
    assert left == {A.uuid: 4 * GB}
    assert place(needs, [A], [A], left).shortage
    assert reserved({A.uuid: 9 * GB, B.uuid: 1}, {UNKNOWN: GB}, first) == {
        A.uuid: 8 * GB,
        B.uuid: 1,
    }


def test_processes_need_their_sum():
    assert together([{A.uuid: 1, B.uuid: 2}, {B.uuid: 3}]) == {A.uuid: 1, B.uuid: 5}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (None, None),
        ("", None),
        ("1", {B.uuid}),
        ("1, 0", {A.uuid, B.uuid}),
        ("GPU-c", {C.uuid}),
        ("0,7,1", {A.uuid}),
        ("GPU-", set()),
        ("MIG-1", set()),
    ],
)
def test_visible_devices_are_understood(text, expected):
    assert visible(text, [A, B, C]) == expected
