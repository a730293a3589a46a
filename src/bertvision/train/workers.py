"""Pieces of work side by side: one loop for every kind of worker, and workers that are processes of this machine."""

import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from typing import IO, Any, NoReturn, Protocol

from bertvision.errors import UserError, nearest
from bertvision.runtime import CPU
from bertvision.train.cells import Cells, StudyCell
from bertvision.train.progress import Journal

RETRIES = 3  # of a piece whose worker died; what it had done is not done again
PATIENCE = 60.0  # seconds that a piece waits for the lock of a worker that died
LOOK = 0.5  # seconds between two looks at the checkpoints and logs of running cells
WORKERS = ("processes", "ray")  # what --on may name


class WorkerDied(Exception):
    """A worker ended without an answer."""


class Piece(Protocol):
    """Something that a worker does on its own, such as a cell."""

    @property
    def id(self) -> str: ...


class Pool(Protocol):
    """Workers that do pieces side by side."""

    @property
    def facts(self) -> dict[str, Any]:
        """Facts about them for study.json."""
        ...

    @property
    def free(self) -> bool:
        """Whether another piece may be started."""
        ...

    def start(self, piece: Any) -> Any:
        """A handle of the work on a piece."""
        ...

    def finished(self, handles: Sequence[Any], seconds: float) -> list[Any]:
        """Those that have ended, after at most some seconds."""
        ...

    def result(self, handle: Any) -> Any:
        """The result. UserError if the piece failed, Died if its worker died."""
        ...

    def stop(self) -> None:
        """Ends all work; it can be resumed."""
        ...


def run_pieces(
    pieces: Sequence[Any],
    pool: Pool,
    view: "PiecesView",
    ready: Callable[[Any], bool] = lambda piece: True,
    done: Callable[[Any, Any], None] = lambda piece, result: None,
    ends: bool = True,
) -> None:
    """Has a pool do all pieces, each as soon as it is ready and a worker is free.

    done: called with each piece and its result. ends: whether the pool is stopped afterwards. A worker that dies is
    replaced; an error of a piece ends everything.
    """
    waiting, running, deaths = list(pieces), dict[Any, Any](), dict[str, int]()
    with view.displayed():
        try:
            while waiting or running:
                for piece in [piece for piece in waiting if ready(piece)]:
                    if pool.free:
                        running[pool.start(piece)] = piece
                        waiting.remove(piece)
                for handle in pool.finished(list(running), LOOK):
                    piece = running.pop(handle)
                    try:
                        done(piece, pool.result(handle))
                        view.done(piece)
                    except WorkerDied as death:
                        deaths[piece.id] = deaths.get(piece.id, 0) + 1
                        if deaths[piece.id] > RETRIES:
                            raise UserError(f"{piece.id}: its worker died {deaths[piece.id]} times ({death})") from None
                        view.journal.say(f"{piece.id}: its worker died ({death}); it goes on in another")
                        waiting.insert(0, piece)
                view.update(list(running.values()))
        finally:
            if ends:
                pool.stop()


def run_on(cells: Cells, on: str, **how: Any) -> None:
    """All cells on the workers that `--on` names, then the rest of the run here. how: see `make_pool`."""
    refuse_unknown(on, WORKERS)
    with cells.shared():
        if waiting := [cell for cell in cells.all if not cells.is_done(cell)]:
            pool = make_pool(on, cells, **how)
            for run in {run.directory: run.run_dir for run in (cells.whole, *cells.whole.studies)}.values():
                run.start(finished=False)  # the user's command, not a worker's
                before = run.facts().get("cells", pool.facts)["threads"]
                if before != pool.facts["threads"]:
                    cells.whole.journal.note(f"this run began with {before} threads per cell, which round otherwise")
                run.add_facts(cells=pool.facts)
            view = PiecesView(cells.whole.journal, "cells", len(cells.all), len(waiting), cells.stage)
            run_pieces(waiting, pool, view, cells.is_ready)
    for study in cells.whole.studies:
        study.runtime = CPU  # all is computed: the rest needs no device, which only the workers may have
    cells.whole.run()


def refuse_unknown(on: str, known: Sequence[str]) -> None:
    if on not in known:
        raise UserError(f"--on {on}: {nearest(on, known)}")


class PiecesView:
    """Progress of pieces that workers do: bars on a terminal, elsewhere a line now and then.

    what: the pieces in one word. count: of all; left: of those not done yet. stage: name of the stage that a piece is
    in, and which share of it is done; None: nothing is shown.
    """

    EVERY = 30.0

    def __init__(
        self, journal: Journal, what: str, count: int, left: int, stage: Callable[[Any], tuple[str, float]] | None
    ) -> None:
        self.journal, self.what, self.count, self.ended, self.stage = journal, what, count, count - left, stage
        self.last_line = time.monotonic()
        self.bar: Any = None
        self.bars: dict[str, Any] = {}

    @contextmanager
    def displayed(self) -> Iterator[None]:
        with self.journal.view() if self.stage else nullcontext() as bar:
            self.bar = bar
            if bar:
                self.bars[""] = bar.add_task(self.what, total=self.count, completed=self.ended, rate="", loss="")
            yield

    def done(self, piece: Piece) -> None:
        self.ended += 1
        if self.bar is not None:
            self.bar.update(self.bars[""], completed=self.ended, rate=self._counts)
        elif self.stage:
            self.journal.say(f"{piece.id}: done; {self._counts}")

    def update(self, running: Sequence[Piece]) -> None:
        """Shows how far the running pieces are."""
        if self.stage is None:
            return
        if self.bar is not None:
            for finished in self.bars.keys() - {piece.id for piece in running} - {""}:
                self.bar.remove_task(self.bars.pop(finished))
            for piece in running:
                stage, share = self.stage(piece)
                if piece.id not in self.bars:
                    self.bars[piece.id] = self.bar.add_task(piece.id, total=1.0, rate="", loss="")
                self.bar.update(self.bars[piece.id], completed=share, rate=stage)
        elif running and time.monotonic() - self.last_line >= self.EVERY:
            self.last_line = time.monotonic()
            stages = [(piece.id, *self.stage(piece)) for piece in running]
            self.journal.say(
                "; ".join([self._counts, *(f"{name}: {stage} {share:.0%}" for name, stage, share in stages)])
            )

    @property
    def _counts(self) -> str:
        return f"{self.ended} of {self.count} {self.what}"


@dataclass
class Processes:
    """`bertvision cell` in processes of this machine, at most `jobs`, each with a fixed number of threads.

    A process that has done a cell waits for the next: it reads their ids, and says when each is done.
    """

    cells: Cells
    jobs: int
    threads: int
    code: Sequence[str] = ()
    running: dict[int, "Worker"] = field(default_factory=dict)
    idle: list["Worker"] = field(default_factory=list)

    @property
    def facts(self) -> dict[str, Any]:
        return {"on": "processes", "jobs": self.jobs, "threads": self.threads}

    @property
    def free(self) -> bool:
        return len(self.running) < self.jobs

    def start(self, cell: StudyCell) -> int:
        worker = self.idle.pop() if self.idle else self._worker()
        self.running[worker.process.pid] = worker
        worker.send(cell.id)
        return worker.process.pid

    def finished(self, handles: Sequence[int], seconds: float) -> list[int]:
        outputs = {self.running[pid].output: pid for pid in handles}
        return [outputs[output] for output in select.select(list(outputs), [], [], seconds)[0]]

    def result(self, handle: int) -> None:
        worker = self.running.pop(handle)
        if worker.output.readline():
            self.idle.append(worker)
        else:
            worker.raise_end()

    def stop(self) -> None:
        for worker in (*self.running.values(), *self.idle):
            worker.close()
        self.running.clear()
        self.idle.clear()

    def _worker(self) -> "Worker":
        run = self.cells.whole.run_dir
        words = ["cell", str(run.recipe_file), "--only", "-", "--out", str(run.path), "--json"]
        words += ["--threads", str(self.threads), "--patience", str(PATIENCE)]
        words += [word for file in self.code for word in ("--code", file)]
        threads = {"OMP_NUM_THREADS": str(self.threads), "MKL_NUM_THREADS": str(self.threads)}
        return Worker(words, threads)


class Worker:
    """A process of this program that reads ids of cells line by line, and answers each with a line."""

    def __init__(self, words: Sequence[str], env: dict[str, str]) -> None:
        self.errors = tempfile.TemporaryFile()  # noqa: SIM115
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-m", "bertvision", *words],  # -P: nothing of the working folder is imported
            env=os.environ | env,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.errors,
            bufsize=0,
        )

    @property
    def output(self) -> IO[bytes]:
        assert self.process.stdout
        return self.process.stdout

    def send(self, line: str) -> None:
        assert self.process.stdin
        with suppress(BrokenPipeError):  # it has died: its output has ended, too
            self.process.stdin.write(f"{line}\n".encode())

    def raise_end(self) -> NoReturn:
        """Raises the reason why it ended before it answered."""
        code, name = self.process.wait(), f"process {self.process.pid}"
        self.errors.seek(0)
        text = self.errors.read().decode(errors="replace").strip()
        self.close()
        if code < 0:
            raise WorkerDied(f"{name}: {signal.Signals(-code).name}")
        if code == 2:
            raise UserError(text.removeprefix("bertvision: "))
        raise RuntimeError(f"{name} failed:\n{text}")

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout, self.errors):
            if pipe:
                pipe.close()


def make_pool(on: str, cells: Cells, *, jobs: int, threads: int | None, code: Sequence[str], **ray: Any) -> Pool:
    """The workers that `--on` names."""
    if on == "processes":
        return Processes(cells, jobs, threads or max(1, (os.cpu_count() or 1) // jobs), code)
    from bertvision.train.on_ray import RayTasks, do_cell

    return RayTasks(cells.whole.directory, do_cell, cells.whole.journal, threads=threads, code=code, **ray)
