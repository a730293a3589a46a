"""Where and how a computation runs: device, precision, processes, seeds and clocks."""

import atexit
import dataclasses
import hashlib
import json
import os
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Literal, TypeVar

import torch
import torch.distributed
from torch import Tensor

from bertvision.devices import Precision, find_device, find_precision
from bertvision.errors import UserError
from bertvision.recipe import RuntimeRecipe

Thing = TypeVar("Thing")

NOTHING: Mapping[str, str] = {}
os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # for `deterministic`; read with the first product on CUDA
BACKENDS = {"cpu": "gloo", "cuda": "cpu:gloo,cuda:nccl", "xpu": "cpu:gloo,xpu:xccl"}  # of torch.distributed
PATIENCE = timedelta(days=7)  # how long a process waits for the others, which may be busy with work of their own
EXIT_WAIT = 5.0  # seconds that the main process waits at its end for the others, one of which may have been killed
FETCH_STEPS = 16  # between two fetches of losses from a device that would have to wait for each


def fold(*parts: object) -> int:
    """A seed from anything printable. Every draw of random numbers has its own, so no generator state is carried
    between steps, and one draw never changes another."""
    return int.from_bytes(hashlib.sha256("/".join(map(str, parts)).encode()).digest()[:8]) >> 1


@dataclass(frozen=True, slots=True)
class Runtime:
    """One process of a computation.

    device: where its tensors lie. precision: of the encoder's products where nothing trains. checkpointing, compiled,
    accumulate, reduce: as `gradient_checkpointing`, `compile`, `accumulate` and `reduce` of a recipe. rank: its number
    among `world` processes.
    """

    device: str = "cpu"
    precision: Precision = "fp32"
    checkpointing: bool = False
    compiled: bool = False
    accumulate: int = 1
    reduce: Literal["exact", "fast"] = "exact"
    rank: int = 0
    world: int = 1

    @property
    def is_main(self) -> bool:
        """Whether this process writes the files and talks to the user."""
        return self.rank == 0

    @property
    def kind(self) -> str:
        """The device without its number."""
        return self.device.partition(":")[0]

    @property
    def identity(self) -> dict[str, Any]:
        """The settings that change results and are not the defaults; without the device, which is noted with a run."""
        own = {key: getattr(self, key) for key in ("precision", "compiled", "accumulate", "reduce")}
        return {key: value for key, value in own.items() if value != getattr(CPU, key)}

    @property
    def fetch_steps(self) -> int:
        """After how many steps losses are fetched from the device; a CPU has nothing to wait for."""
        return 1 if self.kind == "cpu" else FETCH_STEPS

    def to(self, thing: Thing) -> Thing:
        """A tensor, a module, or a dataclass of tensors on the device. To a GPU, tensors are copied from pinned memory
        while the device goes on working."""
        if dataclasses.is_dataclass(thing) and not isinstance(thing, type):
            fields = {field.name: getattr(thing, field.name) for field in dataclasses.fields(thing)}
            moved = {name: self.to(value) for name, value in fields.items() if isinstance(value, Tensor)}
            return dataclasses.replace(thing, **moved)
        target: Any = thing
        if self.kind == "cuda" and isinstance(thing, Tensor) and thing.is_cpu:
            return target.pin_memory().to(self.device, non_blocking=True)
        return target.to(self.device)

    @contextmanager
    def seed(self, *parts: object) -> Iterator[None]:
        """Random numbers within come from fold(*parts) alone, on the CPU and on the device; those outside are as if
        nothing had been drawn."""
        own = [] if self.kind == "cpu" else [torch.device(self.device).index or 0]
        with torch.random.fork_rng(devices=own, device_type=self.kind if own else None):
            # torch.manual_seed would seed every device, also one whose numbers are not restored
            (torch.manual_seed if own else torch.default_generator.manual_seed)(fold(*parts))
            yield

    @contextmanager
    def deterministic(self, note: Callable[[str], None]) -> Iterator[None]:
        """Within, a device uses algorithms that always give the same bits; what has none is noted. A CPU needs none."""
        if self.kind == "cpu":
            yield
            return
        before = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
        torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
        with warnings.catch_warnings():
            shown = warnings.showwarning

            def show(message: Warning | str, *rest: Any) -> None:
                text = str(message).partition(".")[0]
                note(f"{self.device}: {text}") if "deterministic" in text else shown(message, *rest)

            warnings.showwarning = show  # type: ignore[assignment]
            torch.use_deterministic_algorithms(True, warn_only=True)
            try:
                yield
            finally:
                torch.use_deterministic_algorithms(before[0], warn_only=before[1])

    def mine(self, things: Sequence[Thing]) -> list[Thing]:
        """Those of some pieces of work that this process does."""
        return list(things[self.rank :: self.world])

    def wait(self) -> None:
        """Waits until all processes are here."""
        if self.world > 1:
            torch.distributed.barrier()

    def tell(self, value: Thing) -> Thing:
        """The main process's value, plain as JSON, in all processes."""
        if self.world == 1:
            return value
        data = json.dumps(value).encode() if self.is_main else b""
        size = torch.tensor([len(data)])
        torch.distributed.broadcast(size, 0)
        content = (
            torch.tensor(list(data), dtype=torch.uint8) if self.is_main else torch.empty(int(size), dtype=torch.uint8)
        )
        torch.distributed.broadcast(content, 0)
        return json.loads(content.numpy().tobytes())

    def gather(self, data: bytes) -> list[bytes]:
        """In the main process the bytes of all, by rank; in others nothing."""
        if self.world == 1:
            return [data]
        sizes = [torch.zeros(1, dtype=torch.int64) for _ in range(self.world)]
        torch.distributed.all_gather(sizes, torch.tensor([len(data)]))
        if not self.is_main:
            if data:
                torch.distributed.send(torch.frombuffer(bytearray(data), dtype=torch.uint8), 0)
            return []
        contents = [data]
        for rank, size in enumerate(sizes[1:], start=1):
            content = torch.empty(int(size), dtype=torch.uint8)
            if size:
                torch.distributed.recv(content, rank)
            contents.append(content.numpy().tobytes())
        return contents

    def exchange(self, value: Thing) -> list[Thing]:
        """The values of all processes, plain as JSON, by rank, in all of them."""
        return self.tell([json.loads(text) for text in self.gather(json.dumps(value).encode())])

    def any(self, flags: Sequence[bool]) -> list[bool]:
        """For each flag whether it is set in any process."""
        if self.world == 1:
            return list(flags)
        return [bool(value) for value in self.all_reduce(torch.tensor(flags, dtype=torch.int64)).tolist()]

    def all_reduce(self, tensor: Tensor) -> Tensor:
        """The sum of a tensor over all processes, added as the backend likes."""
        if self.world > 1:
            torch.distributed.all_reduce(tensor)
        return tensor

    def tree_sum(self, tensor: Tensor, filled: Sequence[bool]) -> Tensor:
        """The sum over all processes, a power of two, as a binary tree over their ranks. filled: by rank, whether a
        process has anything to add."""
        distance = 1
        while distance < self.world:
            partner, received = self.rank ^ distance, torch.empty_like(tensor)
            send = torch.distributed.P2POp(torch.distributed.isend, tensor, partner)
            receive = torch.distributed.P2POp(torch.distributed.irecv, received, partner)
            for work in torch.distributed.batch_isend_irecv([send, receive]):
                work.wait()
            # A subtree begins at a multiple of `distance` and has as many processes.
            own_filled = any(filled[self.rank // distance * distance :][:distance])
            if any(filled[partner // distance * distance :][:distance]):
                tensor = tensor + received if own_filled else received
            distance *= 2
        return tensor

    def clock(self) -> float:
        """Seconds from a fixed moment, once the device has done everything it was given."""
        self.synchronize()
        return time.perf_counter()

    def synchronize(self) -> None:
        """Waits until the device has done everything it was given."""
        if self.kind != "cpu":
            self._module.synchronize()

    def mark(self) -> Any:
        """This moment, in the order of the device's work; nothing waits for it. See `Timed`."""
        if self.kind == "cpu":
            return time.perf_counter()
        event = self._module.Event(enable_timing=True)
        event.record()
        return event

    def peak_gib(self) -> float:
        """The most memory of the device that tensors have held; 0 where the device does not tell, and on a CPU."""
        counted = None if self.kind == "cpu" else getattr(self._module, "max_memory_allocated", None)
        return round(counted() / 2**30, 2) if counted else 0.0

    def autocast(self) -> Any:
        """Within, matrix products are computed in bfloat16."""
        return torch.autocast(self.kind, dtype=torch.bfloat16)

    @property
    def _module(self) -> Any:
        return torch.get_device_module(self.kind)


CPU = Runtime()  # one process on the CPU


class Timed:
    """Something that counts the seconds of its own work, those of earlier processes included."""

    def __init__(self, seconds: float = 0.0) -> None:
        self._seconds = seconds
        self._open: list[tuple[Any, Any]] = []  # beginnings and ends that a device may not have reached yet

    @property
    def seconds(self) -> float:
        """Read it seldom: a GPU must finish its work first."""
        for begin, end in self._open:
            end.synchronize()
            self._seconds += begin.elapsed_time(end) / 1000
        self._open.clear()
        return self._seconds

    @seconds.setter
    def seconds(self, value: float) -> None:
        self._open.clear()
        self._seconds = value

    @contextmanager
    def timed(self, runtime: Runtime) -> Iterator[None]:
        """Counts the time of the block."""
        begin = runtime.mark()
        yield
        end = runtime.mark()
        if isinstance(begin, float):
            self._seconds += end - begin
        else:
            self._open.append((begin, end))


def start_runtime(wanted: RuntimeRecipe, noted: Mapping[str, str] = NOTHING, alone: bool = False) -> Runtime:
    """The runtime that a recipe asks for; UserError if this machine lacks it. noted: what was found for a run earlier;
    `auto` then means the precision of then. alone: without the other processes of torchrun."""
    device, rank, world = find_device(wanted.device), 0, 1
    if not alone:
        device, rank, world = _join(device)
    is_auto = wanted.precision == "auto"
    return Runtime(
        device,
        find_precision(noted.get("precision", "auto") if is_auto else wanted.precision, device),
        wanted.gradient_checkpointing,
        wanted.compile,
        wanted.accumulate,
        wanted.reduce,
        rank,
        world,
    )


def is_main() -> bool:
    """Whether this is the only process, or the first of those that torchrun has started."""
    return os.environ.get("RANK", "0") == "0"


@contextmanager
def may_print_error() -> Iterator[bool]:
    """Yields whether this process is the one that prints why the job ends: the first of all processes that calls this,
    or the main one if they have not joined yet. On leaving, the main process, which keeps the count, waits for the
    others to have called it."""
    if not torch.distributed.is_initialized():
        yield is_main()
        return
    try:
        store = torch.distributed.distributed_c10d._get_default_store()
        first = store.add("ended", 1) == 1
    except RuntimeError:  # the process that kept the count was killed
        yield True
        return
    yield first
    give_up = time.monotonic() + EXIT_WAIT
    while is_main() and store.add("ended", 0) < torch.distributed.get_world_size() and time.monotonic() < give_up:
        time.sleep(0.05)


def _join(device: str) -> tuple[str, int, int]:
    """Joins the processes that torchrun has started: the device, the rank and the number of them; else one process."""
    world, rank = int(os.environ.get("WORLD_SIZE", "1")), int(os.environ.get("RANK", "0"))
    if world == 1:
        return device, 0, 1
    kind = device.partition(":")[0]
    if kind not in BACKENDS:
        raise UserError(f"torchrun: {kind} works with one process; start it without torchrun")
    if kind != "cpu":  # each process has its own
        device = find_device(f"{kind}:{os.environ.get('LOCAL_RANK', '0')}")
        torch.accelerator.set_device_index(int(device.partition(":")[2]))
    if not torch.distributed.is_initialized():
        torch.distributed.init_process_group(BACKENDS[kind], timeout=PATIENCE)
        atexit.register(torch.distributed.destroy_process_group)
    return device, rank, world
