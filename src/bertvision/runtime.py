"""Where and how a computation runs: device, precision, processes, seeds and clocks."""

import dataclasses
import hashlib
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

import torch
from torch import Tensor

Thing = TypeVar("Thing")


def fold(*parts: object) -> int:
    """A seed from anything printable. Every draw of random numbers has its own, so no generator state is carried
    between steps, and one draw never changes another."""
    return int.from_bytes(hashlib.sha256("/".join(map(str, parts)).encode()).digest()[:8]) >> 1


@dataclass(frozen=True, slots=True)
class Runtime:
    """One process of a computation. rank: its number among `world` processes."""

    device: str = "cpu"
    precision: Literal["fp32", "bf16"] = "fp32"
    rank: int = 0
    world: int = 1

    @property
    def is_main(self) -> bool:
        """Whether this process writes the files and talks to the user."""
        return self.rank == 0

    def to(self, thing: Thing) -> Thing:
        """A tensor, a module, or a dataclass of tensors on the device."""
        if dataclasses.is_dataclass(thing) and not isinstance(thing, type):
            found = {field.name: getattr(thing, field.name) for field in dataclasses.fields(thing)}
            moved = {name: self.to(value) for name, value in found.items() if isinstance(value, Tensor)}
            return dataclasses.replace(thing, **moved)
        target: Any = thing
        return target.to(self.device)

    @contextmanager
    def seed(self, *parts: object) -> Iterator[None]:
        """Random numbers within come from fold(*parts) alone; those outside are as if nothing had been drawn."""
        with torch.random.fork_rng(devices=[self.device] if self._on_gpu else []):
            torch.manual_seed(fold(*parts))
            yield

    def all_reduce(self, tensor: Tensor) -> Tensor:
        """The sum of a tensor over all processes, in place."""
        if self.world > 1:
            torch.distributed.all_reduce(tensor)
        return tensor

    def clock(self) -> float:
        """Seconds from a fixed moment, once the device has done everything it was given."""
        if self._on_gpu:
            torch.cuda.synchronize(self.device)
        return time.perf_counter()

    @property
    def _on_gpu(self) -> bool:
        return self.device.startswith("cuda")


CPU = Runtime()  # one process on the CPU
