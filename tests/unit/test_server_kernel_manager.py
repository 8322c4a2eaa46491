"""The kernel manager of a server, with kernels that are just being started."""

import asyncio
from types import SimpleNamespace

from jupyter_server.services.kernels.kernelmanager import AsyncMappingKernelManager

from jupyter_gpuckpt.server.kernels.kernel_listener import KernelListeners
from jupyter_gpuckpt.server.kernels.kernel_manager import install_kernel_manager


def test_kernels_can_be_listed_at_any_moment_of_a_start(tmp_path):
    async def main():
        owner = SimpleNamespace(served={})  # none of the kernels is under the engine
        stock = AsyncMappingKernelManager(connection_dir=str(tmp_path))
        kernels = install_kernel_manager(stock, owner, KernelListeners(), suspends_idle=True)
        start = asyncio.ensure_future(kernels.start_kernel(kernel_name="python3"))
        listed = []
        while not start.done():
            listed += kernels.list_kernels()
            await asyncio.sleep(0)
        assert {model["execution_state"] for model in listed} <= {"starting"}
        assert [model["id"] for model in kernels.list_kernels()] == [await start]
        await kernels.shutdown_all(now=True)

    asyncio.run(main())
