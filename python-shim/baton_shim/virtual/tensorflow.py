"""Virtual CUDA for TensorFlow: it lists a GPU, and computes what is placed there on the CPU by itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from baton_shim.virtual.patches import Patches


def install(patches: Patches) -> None:
    import tensorflow

    config = tensorflow.config
    physical = config.PhysicalDevice(name="/physical_device:GPU:0", device_type="GPU")
    logical = config.LogicalDevice(name="/device:GPU:0", device_type="GPU")
    visible = Visible(physical)
    for owner in (config, config.experimental):
        add_to_list(patches, owner, "list_physical_devices", physical, lambda: True)
        add_to_list(patches, owner, "list_logical_devices", logical, lambda: visible.shown)
        add_to_list(patches, owner, "get_visible_devices", physical, lambda: visible.shown)
        patches.set(owner, "set_visible_devices", visible.choosing(owner.set_visible_devices))
        for name in ("set_memory_growth", "set_virtual_device_configuration"):
            leave_out(patches, owner, name, physical)
        leave_out(patches, owner, "set_logical_device_configuration", physical)
    details_here = config.experimental.get_device_details

    def get_device_details(device: Any) -> Any:
        from baton_shim.virtual.gpu import KNOWN

        gpu = {"device_name": KNOWN.gpu.name, "compute_capability": KNOWN.gpu.capability}
        return gpu if device == physical else details_here(device)

    patches.set(config.experimental, "get_device_details", get_device_details)
    patches.set(tensorflow.test, "is_gpu_available", lambda *args, **kwargs: True)
    patches.set(tensorflow.test, "gpu_device_name", lambda: "/device:GPU:0")
    patches.set(tensorflow.test, "is_built_with_cuda", lambda: True)


class Visible:
    """Which GPUs a notebook has made visible."""

    def __init__(self, gpu: Any) -> None:
        self.gpu, self.shown = gpu, True

    def choosing(self, choose_here: Callable[..., None]) -> Callable[..., None]:
        def set_visible_devices(devices: Any, device_type: str | None = None) -> None:
            chosen = devices if isinstance(devices, list) else [devices]
            choose_here([device for device in chosen if device != self.gpu], device_type)
            if device_type in (None, "GPU"):
                self.shown = self.gpu in chosen

        return set_visible_devices


def add_to_list(patches: Patches, owner: Any, name: str, gpu: Any, shown: Callable[[], bool]) -> None:
    here: Callable[..., list[Any]] | None = getattr(owner, name, None)
    if here is None:
        return

    def listed(device_type: str | None = None) -> list[Any]:
        found = here(device_type)
        return [*found, gpu] if device_type in (None, "GPU") and shown() and gpu not in found else found

    patches.set(owner, name, listed)


def leave_out(patches: Patches, owner: Any, name: str, gpu: Any) -> None:
    """Ignores a setting of the GPU, which does not exist."""
    here: Callable[..., Any] | None = getattr(owner, name, None)
    if here is None:
        return

    def settle(device: Any, *args: Any, **kwargs: Any) -> Any:
        if device == gpu or (isinstance(device, list) and gpu in device):
            return None
        return here(device, *args, **kwargs)

    patches.set(owner, name, settle)
