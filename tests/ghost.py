"""`ghost`: a second device for machines that have none, with real numbers and a GPU's errors. Importing registers it.

It takes torch's slot for devices of plug-ins. Its memory is plain CPU tensors and its operators are the CPU's, but an
operand that lies elsewhere is refused as CUDA refuses it, `numpy()` is refused by torch itself, and its random numbers
are its own. So a forgotten `.to(device)` or an unseeded generator fails without a GPU. It uses an entry of torch that
is experimental, and needs no compiler.

ghost.fetches: how often a value went to the CPU; on a GPU each of these waits for the device.
ghost.room: most numbers in a tensor; more is "out of memory".
"""

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch.utils._python_dispatch import return_and_correct_aliasing
from torch.utils._pytree import tree_flatten, tree_map_only
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

aten = torch.ops.aten
CROSSING = {aten.copy_.default, aten._to_copy.default}  # may have operands on two devices
INDEXING = {aten.index.Tensor, aten.index_put_.default, aten._index_put_impl_.default, aten._unsafe_index.Tensor}
FETCHING = {aten._local_scalar_dense.default, aten.equal.default, aten.is_nonzero.default}
LOWERED = ("linear", "matmul", "bmm", "addmm", "conv1d", "conv2d")  # what autocast computes in lower precision


class Event:
    """A moment in the order of work. Nothing runs ahead here, so it is the time on the wall."""

    def __init__(self, enable_timing: bool = False) -> None:
        self.at = 0.0

    def record(self) -> None:
        self.at = time.perf_counter()

    def synchronize(self) -> None:
        ghost.waits += 1

    def elapsed_time(self, end: "Event") -> float:
        return 1000 * (end.at - self.at)


class Module:
    """`torch.ghost`, with the functions that torch and bertvision look for in the module of a device."""

    Event = Event
    _initialized = True  # gradient checkpointing asks for this, and for `device`, before it keeps random numbers

    def __init__(self) -> None:
        self.generator = torch.Generator()
        self.fetches = self.waits = 0
        self.room = 1 << 60

    def is_initialized(self) -> bool:
        return True

    def is_available(self) -> bool:
        return True

    def current_device(self) -> int:
        return 0

    def device(self, number: object) -> AbstractContextManager[None]:
        return nullcontext()

    def device_count(self) -> int:
        return 1

    def _is_in_bad_fork(self) -> bool:
        return False

    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        return [torch.bfloat16]

    def synchronize(self) -> None:
        self.waits += 1

    def manual_seed_all(self, seed: int) -> None:
        self.generator.manual_seed(seed)

    def get_rng_state(self, device: object = 0) -> torch.Tensor:
        return self.generator.get_state()

    def set_rng_state(self, state: torch.Tensor, device: object = 0) -> None:
        self.generator.set_state(state)


ghost = Module()
_setup_privateuseone_for_python_backend("ghost", backend_module=ghost)
DEVICE = torch.device("ghost", 0)


class Ghost(torch.Tensor):
    """A tensor of the device; `held` is the CPU tensor with its numbers."""

    @staticmethod
    def __new__(cls, held: torch.Tensor) -> "Ghost":
        if held.numel() > ghost.room:
            raise torch.OutOfMemoryError(f"ghost out of memory. Tried to allocate {held.numel()} numbers")
        how = {"strides": held.stride(), "storage_offset": held.storage_offset(), "dtype": held.dtype}
        return torch.Tensor._make_wrapper_subclass(cls, held.shape, device=DEVICE, **how)

    def __init__(self, held: torch.Tensor) -> None:
        self.held = held

    def __repr__(self, **_: object) -> str:
        return f"ghost({self.held!r})"

    __torch_function__ = torch._C._disabled_torch_function_impl

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        return run(func, args, kwargs or {})


def run(func: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
    """An operator on the tensors that are held; operands must lie on one device."""
    if func is aten._fused_sdp_choice.default:
        return 0  # the plain formula: the others are kernels of particular devices
    _refuse_strays(func, [x for x in tree_flatten((args, kwargs))[0] if isinstance(x, torch.Tensor)])
    if func in FETCHING:
        ghost.fetches += 1
    to = torch.device(kwargs.get("device") or (args[0].device if func is aten.copy_.default else DEVICE))
    own = {"device": torch.device("cpu")} if "device" in kwargs and to.type == DEVICE.type else {}
    kwargs = kwargs | own
    with _own_random_numbers(func):
        out = func(*tree_map_only(Ghost, _held, args), **tree_map_only(Ghost, _held, kwargs))
    if to.type != DEVICE.type:
        ghost.fetches += to.type == "cpu"
        return args[0] if func is aten.copy_.default else out
    out = tree_map_only(torch.Tensor, lambda x: x if isinstance(x, Ghost) else Ghost(x), out)
    return out if func is aten._to_copy.default else return_and_correct_aliasing(func, args, kwargs, out)


def _held(tensor: Ghost) -> torch.Tensor:
    return tensor.held


def _refuse_strays(func: Any, operands: list[torch.Tensor]) -> None:
    """As on CUDA: a CPU tensor beside others is an error, unless it is a single number, or an index."""
    strays = [x for x in operands if not isinstance(x, Ghost) and x.dim()]
    if func in INDEXING:
        strays = [x for x in strays if x.dtype not in (torch.int64, torch.bool)]
    if strays and len(strays) < len(operands) and func not in CROSSING:
        two = f"{DEVICE} and {strays[0].device}"
        raise RuntimeError(
            f"Expected all tensors to be on the same device, but found at least two devices, {two}! ({func})"
        )


@contextmanager
def _own_random_numbers(func: Any) -> Iterator[None]:
    if torch.Tag.nondeterministic_seeded not in func.tags:
        yield
        return
    kept = torch.default_generator.get_state()
    torch.default_generator.set_state(ghost.generator.get_state())
    try:
        yield
    finally:
        ghost.generator.set_state(torch.default_generator.get_state())
        torch.default_generator.set_state(kept)


def _new(name: str) -> Callable[..., Ghost]:
    packet, _, overload = name.partition(".")
    func = getattr(getattr(aten, packet), overload or "default")

    def make(*args: Any, **kwargs: Any) -> Ghost:
        return Ghost(func(*args, **{**kwargs, "device": "cpu", "pin_memory": None}))

    return make


def _lowered(name: str) -> Callable[..., Any]:
    func, key = getattr(aten, name).default, torch._C.DispatchKey.AutocastPrivateUse1

    def cast(*args: Any, **kwargs: Any) -> Any:
        def lower(x: torch.Tensor) -> torch.Tensor:
            return x.to(torch.get_autocast_dtype("ghost")) if x.dtype == torch.float32 else x

        with torch._C._ExcludeDispatchKeyGuard(torch._C.DispatchKeySet(key)):
            return func(*tree_map_only(torch.Tensor, lower, args), **kwargs)

    return cast


@torch.library.impl("aten::_copy_from", "PrivateUse1")
def _copy_from(source: torch.Tensor, target: torch.Tensor, non_blocking: bool = False) -> torch.Tensor:
    held = [x.held if isinstance(x, Ghost) else x for x in (source, target)]
    held[1].copy_(held[0])
    return target


for name in ("empty.memory_format", "empty_strided"):  # all other new tensors are made of these
    torch.library.impl(f"aten::{name}", "PrivateUse1")(_new(name))
LIBRARY = torch.library.Library("_", "IMPL")
LIBRARY.fallback(torch.library.fallthrough_kernel, "AutocastPrivateUse1")
for name in LOWERED:
    torch.library.impl(f"aten::{name}", "AutocastPrivateUse1")(_lowered(name))
