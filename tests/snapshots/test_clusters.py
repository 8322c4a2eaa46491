"""Libraries whose processes talk to each other over TCP: what they were at goes on after a resume."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conftest import wait_for

#: Every task writes its number into a file; most wait for another file.
DASK = """
    import os, time

    def work(number):
        with open("worked", "a") as file:
            file.write(f"{number}\\n")
        while number >= 10 and not os.path.exists("go on"):
            time.sleep(0.01)
        return number * number

    def total(numbers):
        return sum(numbers)

    if __name__ == "__main__":
        from dask.distributed import Client, LocalCluster
        with LocalCluster(n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None) as cluster:
            with Client(cluster) as client:
                workers = sorted(client.run(os.getpid).values())
                result = client.submit(total, client.map(work, range(40)))
                print("working", flush=True)
                value = result.result()
                same = sorted(client.run(os.getpid).values()) == workers
                print(value, same, len(client.scheduler_info()["workers"]), flush=True)
    """


def worked(directory: str) -> list[int]:
    path = Path(directory) / "worked"
    return [int(line) for line in path.read_text().splitlines()] if path.exists() else []


def test_a_dask_computation_ends_with_the_same_result(run) -> None:
    pytest.importorskip("distributed")
    program = run(DASK)
    program.lines()
    wait_for(lambda: len(worked(program.spec.cwd)) >= 4)
    program.save()
    saved = program.save(stop=True)
    assert 4 <= len(worked(program.spec.cwd)) < 40
    assert not saved.warnings
    assert not program.resume(saved.manifest.info.snapshot_id).warnings
    (Path(program.spec.cwd) / "go on").touch()
    lines = program.lines(more_than=1)
    assert lines[1:] == [f"{sum(n * n for n in range(40))} True 2"]
    assert sorted(worked(program.spec.cwd)) == list(range(40))
