"""Whether the GPUs' peer access is on in this process, asked of the driver only: a failing runtime call would leave an error."""

from cuda.bindings import driver

#: CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED.
ON = 704


def peer_access(count=2):
    """For every ordered pair of the first GPUs: ON, 0 if it was off and is so again, or why the driver will not tell."""
    contexts = [_checked(driver.cuDevicePrimaryCtxRetain(number)) for number in range(count)]
    found = []
    for own in contexts:
        _checked(driver.cuCtxPushCurrent(own))
        for other in contexts:
            if other is not own:
                (error,) = driver.cuCtxEnablePeerAccess(other, 0)
                if int(error) == 0:
                    _checked(driver.cuCtxDisablePeerAccess(other))
                found.append(int(error))
        _checked(driver.cuCtxPopCurrent())
    for number in range(count):
        _checked(driver.cuDevicePrimaryCtxRelease(number))
    return found


def _checked(result):
    error, *rest = result
    if int(error):
        raise RuntimeError(str(error))
    return rest[0] if rest else None
