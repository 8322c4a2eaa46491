"""The kernel provisioner: starts every kernel under the engine, so that it can be saved, suspended and resumed.

- `agent_installation`: requests over a kernel's control channel.
- `exit_status`: the exit code of a kernel, read from the file that its init writes.
- `kernel_ports`: the five ports of a kernel.
- `launch_spec`: the launch spec of a kernel.
- `owner`: the owner of the kernels that this process launches.
- `provisioner`: the launch of a kernel through the daemon, its watch, and its end.
- `template_starts`: starts of kernels as copies of a template's kernel.
"""

from .provisioner import GpuCkptProvisioner

__all__ = ["GpuCkptProvisioner"]
