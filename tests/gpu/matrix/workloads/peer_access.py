"""Whether the GPUs' peer access is on in this process, asked of the driver only: a failing runtime call would leave an error."""

from contextlib import contextmanager

from cuda.bindings import driver

#: CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED.
ON = 704


def peer_access(count=2):
    """For every ordered pair of the first GPUs: ON, 0 if it was off and is so again, or why the driver will not tell."""
    found = []
    with contexts(count) as each:
        for own in each:
            _checked(driver.cuCtxPushCurrent(own))
            for other in each:
                if other is not own:
                    (error,) = driver.cuCtxEnablePeerAccess(other, 0)
                    if int(error) == 0:
                        _checked(driver.cuCtxDisablePeerAccess(other))
                    found.append(int(error))
            _checked(driver.cuCtxPopCurrent())
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
        _checked(driver.cuCtxPushCurrent(context))
        _checked(driver.cuCtxSynchronize())
        _checked(driver.cuCtxPopCurrent())


def _checked(result):
    error, *rest = result
    if int(error):
        raise RuntimeError(str(error))
    return rest[0] if rest else None
