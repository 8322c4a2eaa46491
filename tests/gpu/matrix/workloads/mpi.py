"""MPI in the process: Open MPI's hwloc would look at the GPUs and keep them open."""

from mpi4py import MPI

from .on_torch import TorchWork


class Work(TorchWork):
    def __init__(self, seed):
        super().__init__(seed)
        self.arange(0, 1000)  # makes the context

    def look(self):
        return {**super().look(), "rank": MPI.COMM_WORLD.Get_rank()}
