"""The kernel provisioner: starts every kernel under the engine, so that it can be saved, suspended and resumed."""

from .provisioner import GpuCkptProvisioner

__all__ = ["GpuCkptProvisioner"]
