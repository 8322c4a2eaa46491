"""CUDA without a framework: memory, a stream, an event and compiled kernels, all by the driver's own functions."""

import ctypes

from cuda.bindings import driver, nvrtc

THREADS = 256
LENGTH = 1 << 22
OPERATORS = {"add": "+", "multiply": "*", "modulo": "%"}
FILL = """
extern "C" __global__ void fill(long long* to, long long first, long long count) {
    long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x;
    if (i < count) to[i] = first + i;
}
extern "C" __global__ void total(unsigned long long* to, const long long* from, long long count) {
    unsigned long long own = 0;
    long long step = gridDim.x * (long long)blockDim.x;
    for (long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x; i < count; i += step) own += from[i];
    atomicAdd(to, own);
}
"""
# The right operand is an array, or a number where there is none.
OPERATION = """
extern "C" __global__ void {name}(long long* to, const long long* left, const long long* right, long long number, long long count) {{
    long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x;
    if (i < count) to[i] = left[i] {operator} (right ? right[i] : number);
}}
"""


def done(answer):
    """Return what a function returns beside its error, which must be none."""
    error, *found = answer
    if int(error):
        raise RuntimeError(repr(error))
    return found[0] if len(found) == 1 else found


class Numbers:
    """Integers of 64 bits on the GPU, with what the tokens need of an array."""

    def __init__(self, gpu, count):
        self._gpu, self._count = gpu, count
        self.address = done(driver.cuMemAlloc(count * 8))

    def __del__(self):
        driver.cuMemFree(self.address)

    def __len__(self):
        return self._count

    def __add__(self, other):
        return self._with("add", other)

    def __mul__(self, other):
        return self._with("multiply", other)

    def __mod__(self, other):
        return self._with("modulo", other)

    def _with(self, name, other):
        result = Numbers(self._gpu, self._count)
        is_number = isinstance(other, int)
        # A number beyond 63 bits is the negative one of the same bits.
        number = ctypes.c_int64(other if is_number else 0).value
        address = 0 if is_number else int(other.address)
        self._gpu.launch(
            name, self._count, int(result.address), int(self.address), address, number, self._count
        )
        return result

    def sum(self):
        to = Numbers(self._gpu, 1)
        done(driver.cuMemsetD8(to.address, 0, 8))
        self._gpu.launch("total", 1 << 16, int(to.address), int(self.address), self._count)
        held = ctypes.c_uint64()
        done(driver.cuMemcpyDtoH(ctypes.addressof(held), to.address, 8))
        return held.value


class Gpu:
    """The first GPU, with the kernels compiled for it."""

    def __init__(self):
        done(driver.cuInit(0))
        device = done(driver.cuDeviceGet(0))
        done(driver.cuCtxSetCurrent(done(driver.cuDevicePrimaryCtxRetain(device))))
        attribute = driver.CUdevice_attribute
        major, minor = (
            done(driver.cuDeviceGetAttribute(one, device))
            for one in (
                attribute.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR,
                attribute.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR,
            )
        )
        self._architecture = f"--gpu-architecture=sm_{major}{minor}".encode()
        operations = (
            OPERATION.format(name=name, operator=sign) for name, sign in OPERATORS.items()
        )
        names = ["fill", "total", *OPERATORS]
        self._functions = self.compiled("".join([FILL, *operations]), names)
        self._stream = done(driver.cuStreamCreate(0))
        self._event = done(driver.cuEventCreate(0))

    def compiled(self, source, names):
        """Return the kernels of these names in a source."""
        program = done(nvrtc.nvrtcCreateProgram(source.encode(), b"numbers.cu", 0, [], []))
        done(nvrtc.nvrtcCompileProgram(program, 1, [self._architecture]))
        code = bytes(done(nvrtc.nvrtcGetCUBINSize(program)))
        done(nvrtc.nvrtcGetCUBIN(program, code))
        module = done(driver.cuModuleLoadData(code))
        return {name: done(driver.cuModuleGetFunction(module, name.encode())) for name in names}

    def launch(self, name, count, *arguments, functions=None):
        """Run a kernel with integers of 64 bits as arguments, and wait for it by an event."""
        function = (functions or self._functions)[name]
        kinds = (ctypes.c_int64,) * len(arguments)
        blocks = (count + THREADS - 1) // THREADS
        shape = (blocks, 1, 1, THREADS, 1, 1, 0)
        done(driver.cuLaunchKernel(function, *shape, self._stream, (arguments, kinds), 0))
        done(driver.cuEventRecord(self._event, self._stream))
        done(driver.cuEventSynchronize(self._event))


class Work:
    def __init__(self, seed):
        self._gpu, self._looks = Gpu(), 0
        self._numbers = self.arange(seed % 1000, seed % 1000 + LENGTH)

    def arange(self, start, stop):
        found = Numbers(self._gpu, stop - start)
        self._gpu.launch("fill", stop - start, int(found.address), start, stop - start)
        return found

    def look(self):
        self._looks += 1
        self._numbers = self._numbers * 3 + self._looks
        # Compiled anew in every look, and so after each resume.
        source = OPERATION.format(name="later", operator="^")
        later = Numbers(self._gpu, LENGTH)
        arguments = (int(later.address), int(self._numbers.address), 0, self._looks, LENGTH)
        functions = self._gpu.compiled(source, ["later"])
        self._gpu.launch("later", LENGTH, *arguments, functions=functions)
        return {"sums": [self._numbers.sum(), later.sum()]}
