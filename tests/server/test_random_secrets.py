"""Copies of one snapshot make different keys and other secrets; numbers of statistics go on as they were."""

import json

import pytest

from .test_time_travel import branch

PREPARE = """
import json, multiprocessing, os, random, ssl, tempfile, threading
from cryptography.hazmat.primitives.asymmetric import ec

numbers = random.Random()

def drawn():
    key = ec.generate_private_key(ec.SECP256R1()).private_numbers().private_value
    return {
        "ssl": ssl.RAND_bytes(16).hex(),
        "cryptography": str(key),
        "multiprocessing": bytes(multiprocessing.current_process().authkey).hex(),
        "tempfile": next(tempfile._get_candidate_names()),
        "random": str(numbers.random()),
    }

drawn()
"""
DRAW = """
found = [drawn()]
thread = threading.Thread(target=lambda: found.append(drawn()))
thread.start()
thread.join()
print(json.dumps([os.getpid(), *found]))
"""


@pytest.fixture
def page(clean_server):
    return clean_server.open()


def test_branches_and_a_kernel_that_was_rolled_back_draw_different_secrets(clean_server, page):
    page.run(PREPARE)
    snapshot_id = clean_server.do("save", page.kernel_id)["result"]["snapshot_id"]
    branches = [branch(clean_server, snapshot_id) for _ in range(2)]
    kernels = [json.loads(each.run(DRAW)) for each in (page, *branches)]
    clean_server.do("roll_back", page.kernel_id, snapshot_id=snapshot_id)
    kernels.append(json.loads(page.run(DRAW)))
    pids = {pid for pid, *_ in kernels}
    assert len(pids) == 1
    for name in ("ssl", "cryptography", "tempfile"):
        drawn = [one[name] for _, *found in kernels for one in found]
        assert len(set(drawn)) == len(drawn), name
    assert len({found["multiprocessing"] for _, found, _ in kernels}) == len(kernels)
    # Generators of statistics go on as they were.
    assert len({(one["random"], other["random"]) for _, one, other in kernels}) == 1
