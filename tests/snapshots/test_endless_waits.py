"""A call that waits without a limit is not broken off: programs in C++ end of an EINTR that no signal explains."""

import pytest

#: Three threads wait for their pipes as C does, by calls that are not tried again as Python's own are.
WAITERS = """
    import ctypes, os, struct, threading, time
    libc = ctypes.CDLL(None, use_errno=True)
    pipes = [os.pipe() for _ in range(3)]
    epoll = libc.epoll_create1(0)
    libc.epoll_ctl(epoll, 1, pipes[1][0], struct.pack("<IQ", 1, 7))
    libc.epoll_ctl(epoll, 1, pipes[2][0], struct.pack("<IQ", 1, 7))
    events = ctypes.create_string_buffer(12)
    calls = [
        lambda: libc.poll(struct.pack("<ihh", pipes[0][0], 1, 0), 1, -1),
        lambda: libc.epoll_wait(epoll, events, 1, -1),
        lambda: libc.epoll_pwait(epoll, events, 1, -1, None),
    ]
    def tell(*words):  # by one write: threads that print may write between another's text and the end of its line
        print(" ".join(map(str, words)) + "\\n", end="", flush=True)
    def wait(number):
        tell("waiting", number)
        tell("waited", number, calls[number](), ctypes.get_errno())
    threads = [threading.Thread(target=wait, args=(n,)) for n in range(3)]
    for thread in threads:
        thread.start()
    while not os.path.exists("go"):
        time.sleep(0.01)
    for _, writing in pipes:
        os.write(writing, b"x")
"""


@pytest.mark.parametrize("stop", [False, True])
def test_a_wait_without_a_limit_goes_on_after_a_freeze(run, tmp_path, stop):
    program = run(WAITERS)
    program.lines(more_than=2)
    for _ in range(2):
        saved = program.save(stop=stop)
        if stop:
            program.resume(saved.manifest.info.snapshot_id)
    (tmp_path / "program-0" / "go").touch()
    assert sorted(program.lines(more_than=5)[3:]) == [f"waited {number} 1 0" for number in range(3)]
