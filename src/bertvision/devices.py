"""Devices of this machine, the precision that is quickest on them, and its memory."""

import os
import sys
import time
from typing import Any, Literal

import torch

from bertvision.errors import UserError

try:
    import resource
except ImportError:  # Windows: memory is not reported there
    resource = None  # type: ignore[assignment]

Precision = Literal["fp32", "bf16"]


def find_device(name: str = "auto", key: str = "runtime.device") -> str:
    """A device of this machine; `auto`: its GPU, if it has one that torch can use, else the CPU."""
    available = devices()
    if name == "auto":
        return next((kind for kind in available if kind in ("cuda", "xpu", "mps")), "cpu")
    kind, _, number = name.partition(":")
    if kind not in available or (number and not (number.isdecimal() and int(number) < available[kind])):
        listed = ", ".join(
            f"{kind}:0 to {kind}:{count - 1}" if count > 1 else kind for kind, count in available.items()
        )
        raise UserError(f"{key}: there is no {name!r} here that torch can use; there is: {listed}")
    return name


def devices() -> dict[str, int]:
    """{kind: number} of the devices that torch can use here."""
    counts = {"cpu": 1}
    plugin = torch._C._get_privateuse1_backend_name()  # of a plug-in
    for kind in ("cuda", "xpu", "mps", *([plugin] if hasattr(torch, plugin) else [])):
        module = torch.backends.mps if kind == "mps" else torch.get_device_module(kind)
        if module.is_available():
            counts[kind] = torch.get_device_module(kind).device_count()
    return counts


def find_precision(
    wanted: Literal["auto", "fp32", "bf16"] | str, device: str, key: str = "runtime.precision"
) -> Precision:
    """`bf16` is an error where it would be slow. `auto`: bf16 where the device has instructions for it; on a CPU only
    if it is found to be quicker. The environment variable BERTVISION_PRECISION says instead what `auto` means."""
    if wanted == "auto":
        wanted = os.environ.get("BERTVISION_PRECISION") or "auto"
        if wanted not in ("auto", "fp32", "bf16"):
            raise UserError(f'BERTVISION_PRECISION: {wanted!r} is none of "auto", "fp32", "bf16"')
    if wanted == "bf16" and not has_bf16(device):
        where = "this processor" if device == "cpu" else device
        raise UserError(f'{key}: {where} has no instructions for bf16, it would be slower; give "fp32"')
    if wanted == "auto" and has_bf16(device) and (device != "cpu" or _quicker_in_bf16()):
        return "bf16"
    return "bf16" if wanted == "bf16" else "fp32"


def has_bf16(device: str = "cpu") -> bool:
    """True if the device multiplies bfloat16 itself; a CPU that emulates it takes up to a hundred times as long."""
    if device == "cpu":
        return torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()
    module = torch.get_device_module(device.partition(":")[0])
    if hasattr(module, "is_bf16_supported"):
        return bool(module.is_bf16_supported(including_emulation=False))
    return torch.amp.is_autocast_available(device.partition(":")[0])


def has_onednn() -> bool:
    """Whether this torch has oneDNN's products for CPUs."""
    return torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_linear_pointwise")


def _quicker_in_bf16() -> bool:
    """Whether a product of the size of an encoder's takes a CPU less time in bfloat16."""
    product: Any = torch.nn.functional.linear
    if has_onednn():  # what computes both here, see `backbone/cpu_kernels.py`
        product = lambda x, weight: torch.ops.mkldnn._linear_pointwise(x, weight, None, "none", [], "")  # noqa: E731
    seconds = {}
    with torch.no_grad():
        for dtype in (torch.float32, torch.bfloat16):
            x, weight = torch.ones(512, 384, dtype=dtype), torch.ones(1536, 384, dtype=dtype)
            times = []
            for _ in range(8):
                began = time.perf_counter()
                product(x, weight)
                times.append(time.perf_counter() - began)
            seconds[dtype] = min(times)
    return seconds[torch.bfloat16] < seconds[torch.float32]


def memory() -> int:
    """Bytes of memory of this machine."""
    if hasattr(os, "sysconf") and "SC_PHYS_PAGES" in os.sysconf_names:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return 8 << 30


def peak_memory() -> int:
    """The most bytes that this process has held so far; 0 where the system does not tell."""
    if resource is None:
        return 0
    unit = 1 if sys.platform == "darwin" else 1024  # macOS counts bytes, Linux kibibytes
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
