"""Peer access and copies between GPUs, by the driver's functions only: a failing call of the runtime would leave an error."""

from contextlib import contextmanager

from cuda.bindings import driver

#: CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED.
ON = 704


def peer_access(count=2):
    """Return the state of peer access for each ordered pair of the first GPUs.

    The state is ON, 0 if it is off, or the driver's error.
    """
    found = []
    with contexts(count) as each:
        for own in each:
            with _current(own):
                for other in each:
                    if other is not own:
                        (error,) = driver.cuCtxEnablePeerAccess(other, 0)
                        if int(error) == 0:
                            _checked(driver.cuCtxDisablePeerAccess(other))
                        found.append(int(error))
    return found


@contextmanager
def contexts(count=2):
    """Yield the contexts of the first GPUs."""
    yield [_checked(driver.cuDevicePrimaryCtxRetain(number)) for number in range(count)]
    for number in range(count):
        _checked(driver.cuDevicePrimaryCtxRelease(number))


def copied(to, to_context, start, start_context, length):
    """Copy memory from one GPU to another: a half by the contexts, and a half by the addresses alone."""
    half = length // 2
    _checked(driver.cuMemcpyPeer(to, to_context, start, start_context, half))
    _checked(driver.cuMemcpy(to + half, start + half, half))
    for context in (to_context, start_context):
        with _current(context):
            _checked(driver.cuCtxSynchronize())


def from_pool(number, length):
    """Return the address of zeros in the default memory pool of a GPU."""
    # The context stays retained: the memory outlives this call.
    with _current(_checked(driver.cuDevicePrimaryCtxRetain(number))):
        address = _checked(driver.cuMemAllocAsync(length, 0))
        _checked(driver.cuMemsetD8Async(address, 0, length, 0))
        _checked(driver.cuCtxSynchronize())
    return int(address)


def copied_at_once(to, start, length):
    """Copy memory by addresses alone, in the current context; the copy is over when it returns."""
    _checked(driver.cuMemcpy(to, start, length))
    _checked(driver.cuCtxSynchronize())


@contextmanager
def _current(context):
    """Make a context current inside the block."""
    _checked(driver.cuCtxPushCurrent(context))
    try:
        yield
    finally:
        _checked(driver.cuCtxPopCurrent())


def _checked(result):
    error, *rest = result
    if int(error):
        raise RuntimeError(str(error))
    return rest[0] if rest else None
