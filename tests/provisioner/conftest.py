"""Kernels of both provisioners: what is promised for ours is what the stock one does."""

import asyncio

import pytest
from jupyter_client.manager import AsyncKernelManager
from jupyter_client.provisioning.factory import KernelProvisionerFactory
from traitlets.config import Config

#: Jupyter's own shows that the tests ask for nothing more than it does; that need not be shown every time.
PROVISIONERS = [pytest.param("local-provisioner", marks=pytest.mark.slow), "gpuckpt-provisioner"]
TIMEOUT = 120


class Kernel:
    """A kernel of a script, with the few things that tests ask of it."""

    def __init__(self, settings=None):
        self.manager = AsyncKernelManager(kernel_name="python3", config=settings or Config())
        self.client = None

    async def start(self, **arguments):
        await self.manager.start_kernel(**arguments)
        self.client = self.manager.client()
        self.client.start_channels()
        await self.client.wait_for_ready(timeout=TIMEOUT)
        return self

    @property
    def provisioner(self):
        return self.manager.provisioner

    async def run(self, code, **arguments):
        """Return the reply and everything printed, in order."""
        texts = []

        def output(message):
            content = message["content"]
            if message["msg_type"] == "stream":
                texts.append((content["name"], content["text"]))
            elif message["msg_type"] == "execute_result":
                texts.append(("result", content["data"]["text/plain"]))

        reply = await self.client.execute_interactive(
            code, output_hook=output, timeout=TIMEOUT, **arguments
        )
        return reply["content"], texts

    async def printed(self, code):
        """Return what `code` printed to standard output."""
        reply, texts = await self.run(code)
        assert reply["status"] == "ok", reply
        return "".join(text for name, text in texts if name == "stdout")

    async def until(self, condition):
        """Wait for a condition."""
        async with asyncio.timeout(TIMEOUT):
            while not condition():  # noqa: ASYNC110
                await asyncio.sleep(0.02)

    async def exit_code(self):
        """Return the exit code, once there is one."""
        async with asyncio.timeout(TIMEOUT):
            while (code := await self.provisioner.poll()) is None:  # noqa: ASYNC110
                await asyncio.sleep(0.02)
        return code

    async def end(self):
        if self.client is not None:
            self.client.stop_channels()
        # Also when the kernel has ended by itself: this lets go of what it used.
        await self.manager.shutdown_kernel(now=True)
        self.manager.context.destroy(linger=0)


@pytest.fixture
def environment(daemon_env, monkeypatch):
    """Yield the environment of a daemon of its own, in this process."""
    for name, value in daemon_env.items():
        monkeypatch.setenv(name, value)
    KernelProvisionerFactory.clear_instance()
    yield daemon_env
    KernelProvisionerFactory.clear_instance()


@pytest.fixture(params=PROVISIONERS)
def provisioner_name(request, environment, monkeypatch):
    """Each provisioner in turn, as the default."""
    monkeypatch.setenv("JUPYTER_DEFAULT_PROVISIONER_NAME", request.param)
    environment["JUPYTER_DEFAULT_PROVISIONER_NAME"] = request.param
    return request.param


@pytest.fixture
def ours(environment, monkeypatch):
    """Our provisioner as the default."""
    monkeypatch.setenv("JUPYTER_DEFAULT_PROVISIONER_NAME", "gpuckpt-provisioner")
    environment["JUPYTER_DEFAULT_PROVISIONER_NAME"] = "gpuckpt-provisioner"
    return environment


@pytest.fixture
def with_kernel():
    """Run `body(kernel)` with a fresh kernel on an event loop of its own."""

    def run(body, settings=None, **arguments):
        async def main():
            kernel = Kernel(settings)
            try:
                await kernel.start(**arguments)
                return await body(kernel)
            finally:
                await kernel.end()

        return asyncio.run(main())

    return run
