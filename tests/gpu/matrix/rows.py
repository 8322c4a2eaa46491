"""The rows of the GPU matrix, in the order of the page: what runs in the kernel, and what it needs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

MB = 1 << 20
#: What rows need that ask the driver itself.
TORCH_AND_DRIVER = ("torch", "cuda.bindings.driver")


class Row(NamedTuple):
    """A row; `workload` is the module below `workloads`, `options` go to its `Work`."""

    name: str
    title: str
    workload: str
    options: Mapping[str, object] = {}
    #: Modules that must be installed.
    needs: tuple[str, ...] = ("torch",)
    gpus: int = 1
    #: Memory of one GPU is reached by the other.
    peers: bool = False
    #: Triton compiles a part of itself with the machine's C compiler.
    compiler: bool = False
    #: The GPU's token alone, in bytes.
    gpu_bytes: int = 256 * MB
    #: What the refusal says, as a regular expression; empty: it works.
    refused: str = ""
    #: The error's code: kernel_not_checkpointable comes before anything is stopped, freeze_failed is the driver's word.
    code: str = "kernel_not_checkpointable"
    #: Whether a machine without a GPU can run it, with MATRIX_DEVICE=cpu.
    without_gpu: bool = False


WORKS = [
    Row("torch_tensors", "PyTorch: tensors, random numbers", "torch_tensors", without_gpu=True),
    Row(
        "torch_training",
        "PyTorch: convolutional net, dropout, AdamW's state; losses as without a stop",
        "torch_training",
        without_gpu=True,
    ),
    Row("cuda_graph", "CUDA graph, captured before and replayed after", "cuda_graph"),
    Row(
        "graphs_in_a_pool",
        "PyTorch: a memory pool of the program's own, CUDA graphs that share a private pool",
        "torch_pool",
    ),
    Row("expandable_segments", "PyTorch with expandable segments", "torch_segments"),
    Row("pinned_memory", "1 GB of pinned host memory", "pinned_memory", without_gpu=True),
    Row("nvml", "NVML in the process", "nvml", needs=("torch", "pynvml")),
    Row(
        "launching_thread",
        "A thread that launches kernels in a loop",
        "launching_thread",
        without_gpu=True,
    ),
    Row(
        "torch_compile",
        "torch.compile with Triton and its compile workers",
        "torch_compile",
        needs=("torch", "triton"),
        compiler=True,
        without_gpu=True,
    ),
    Row(
        "torch_compile_two_gpus",
        "torch.compile with Triton where its compile workers see two GPUs",
        "torch_compile",
        needs=("torch", "triton"),
        compiler=True,
        gpus=2,
    ),
    Row("cupy", "CuPy", "cupy_arrays", needs=("cupy",)),
    Row("jax", "JAX", "jax_arrays", needs=("jax",), without_gpu=True),
    Row("numba", "Numba", "numba_kernels", needs=("torch", "numba")),
    Row(
        "lightning",
        "Lightning: a trainer that goes on; losses as without a stop",
        "lightning_training",
        needs=("lightning",),
        without_gpu=True,
    ),
    Row(
        "by_hand",
        "CUDA by the driver's own functions, with kernels compiled by NVRTC",
        "cuda_by_hand",
        needs=("cuda.bindings.nvrtc",),
    ),
    Row("mpi4py", "mpi4py, whose hwloc looks for GPUs", "mpi", needs=("torch", "mpi4py")),
    Row(
        "data_loader",
        "DataLoader, persistent workers in mid-epoch",
        "data_loader",
        without_gpu=True,
    ),
    Row(
        "data_loader_pinned",
        "The same with pin_memory",
        "data_loader",
        {"pin": True},
    ),
    Row(
        "fork_pool",
        "multiprocessing.Pool, forked after CUDA's start",
        "fork_pool",
        without_gpu=True,
    ),
    Row(
        "descendants",
        "Children of children, forked after CUDA's start",
        "descendants",
        without_gpu=True,
    ),
    Row(
        "second_process",
        "A second process with a CUDA context of its own (spawn)",
        "second_process",
        without_gpu=True,
    ),
    Row(
        "shared_before",
        "CUDA IPC: a tensor that was given to a second process, which copied and dropped it",
        "second_process",
        {"shared": True, "drops": True},
    ),
    Row(
        "child_on_two_gpus",
        "A child process on two GPUs, with peer access",
        "second_process",
        {"gpus": 2},
        gpus=2,
        peers=True,
    ),
    Row(
        "spawned_workers",
        "A pool of two spawned processes with CUDA contexts of their own",
        "spawned_workers",
        without_gpu=True,
    ),
    Row("two_gpus", "PyTorch on two GPUs, no peer access", "several_gpus", gpus=2),
    Row(
        "two_gpus_copies",
        "PyTorch on two GPUs, copies between them without peer access",
        "several_gpus",
        {"copies": True},
        needs=TORCH_AND_DRIVER,
        gpus=2,
    ),
    Row(
        "two_gpus_peers",
        "PyTorch on two GPUs after x.to('cuda:1'): peer access",
        "several_gpus",
        {"peers": True},
        needs=TORCH_AND_DRIVER,
        gpus=2,
        peers=True,
    ),
    Row(
        "nccl",
        "NCCL all_reduce on two GPUs of one process",
        "several_gpus",
        {"peers": True, "nccl": True},
        needs=TORCH_AND_DRIVER,
        gpus=2,
        peers=True,
    ),
    Row(
        "nccl_without_cumem",
        "The same with NCCL_CUMEM_ENABLE=0",
        "several_gpus",
        {"peers": True, "nccl": True, "cumem": False},
        needs=TORCH_AND_DRIVER,
        gpus=2,
        peers=True,
    ),
    Row(
        "pool_of_another_gpu",
        "PyTorch on one GPU, copies by address to the memory pool of another one",
        "several_gpus",
        {"pool": True},
        needs=TORCH_AND_DRIVER,
        gpus=2,
    ),
    Row(
        "four_gpus",
        "PyTorch on four GPUs, copies between them without peer access",
        "several_gpus",
        {"gpus": 4, "copies": True},
        needs=TORCH_AND_DRIVER,
        gpus=4,
    ),
    Row(
        "four_gpus_nccl",
        "NCCL all_reduce and peer access on four GPUs of one process",
        "several_gpus",
        {"gpus": 4, "peers": True, "nccl": True},
        needs=TORCH_AND_DRIVER,
        gpus=4,
        peers=True,
    ),
    Row("jax_two_gpus", "JAX on two GPUs", "jax_arrays", {"gpus": 2}, needs=("jax",), gpus=2),
    Row(
        "cupy_peers",
        "CuPy on two GPUs with peer access",
        "cupy_arrays",
        {"peers": True},
        needs=("cupy", "cuda.bindings.driver"),
        gpus=2,
        peers=True,
    ),
]

#: Suspended while its cell runs.
TRAINING_LOOP = Row(
    "training_loop",
    "A training loop with DataLoader workers, suspended in mid-epoch while it runs; losses as without a stop",
    "training_loop",
    {"pace": 0.05},
    without_gpu=True,
)

PARKED = [
    Row("parked", "Parked and unparked: PyTorch on one GPU", "torch_tensors"),
    Row("parked_jax", "Parked and unparked: JAX", "jax_arrays", needs=("jax",)),
    Row(
        "parked_peers",
        "Parked and unparked: PyTorch on two GPUs with peer access",
        "several_gpus",
        {"peers": True},
        needs=TORCH_AND_DRIVER,
        gpus=2,
        peers=True,
    ),
]

MOVED = Row(
    "moved",
    "Comes back on the other GPU, because its own is full",
    "torch_tensors",
    gpus=2,
    gpu_bytes=1024 * MB,
)
SWAPPED = Row(
    "swapped",
    "Two GPUs are swapped, because there is room for the larger part on the other one only",
    "several_gpus",
    {"uneven": True},
    gpus=2,
    gpu_bytes=3072 * MB,
)

REFUSED = [
    Row(
        "managed_memory",
        "Managed memory",
        "managed_memory",
        needs=TORCH_AND_DRIVER,
        refused="managed memory",
        code="freeze_failed",
    ),
    Row(
        "cuda_ipc",
        "CUDA IPC: a tensor shared by two processes of the kernel",
        "second_process",
        {"shared": True},
        refused="CUDA IPC",
    ),
    Row(
        "profiled",
        "torch.profiler was used with CUDA activities",
        "profiled",
        refused="A profiler was used",
        code="freeze_failed",
    ),
]

#: All, in the order of the page.
ROWS = [
    *[row for row in WORKS if row.gpus == 1],
    TRAINING_LOOP,
    *[row for row in PARKED if row.gpus == 1],
    *[row for row in WORKS if row.gpus > 1],
    *[row for row in PARKED if row.gpus > 1],
    MOVED,
    SWAPPED,
    *REFUSED,
]
