"""Pieces of work as tasks of Ray: on this machine, or on a cluster whose nodes share the folder of the run.

Only text and plain values go through Ray: the folder, the id of a piece, an error. Everything else goes through files.
"""

import os
import secrets
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bertvision.errors import UserError
from bertvision.files import claim, release, write_text
from bertvision.states.write import Note
from bertvision.train.cells import Cells, last_stage
from bertvision.train.progress import Journal
from bertvision.train.run_dir import RunDir
from bertvision.train.run_results import runtime_of
from bertvision.train.search import Outcomes, Round, Search
from bertvision.train.tap import Tap
from bertvision.train.workers import PATIENCE, Piece, PiecesView, WorkerDied, run_pieces

PROBE = ".probe"  # a file that proves that driver and workers see the same folder
# Without an address Ray's servers, which run whatever code they are sent, listen on the loopback interface alone. The
# variable says so on Linux too, whatever its name. Ray gives workers a niceness of 15: beside other work they stand
# still.
LOCAL = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0", "RAY_worker_niceness": "0"}
ANSWER = 20.0  # seconds that a cluster has to answer
_code: set[str] = set()  # files that this worker has imported already
_taps: dict[tuple[str, tuple[Any, ...]], Tap] = {}  # the last that this worker has worked for: it holds an encoder


@dataclass(frozen=True, slots=True)
class WorkerSetup:
    """Where and how the workers of a job work. token: what the probe in `run` holds, new for every driver."""

    run: str
    token: str
    cwd: str
    threads: int
    code: tuple[str, ...]

    @property
    def probe(self) -> Path:
        return Path(self.run) / PROBE

    def refuse_elsewhere(self) -> None:
        """UserError unless this process sees the files of the driver."""
        host = socket.gethostname()
        if not self.probe.is_file() or self.probe.read_text(encoding="utf-8") != self.token:
            raise UserError(
                f"{self.run}: is not the same folder on {host}; give an --out on storage that all nodes share"
            )
        if not Path(self.cwd).is_dir():
            raise UserError(f"{self.cwd}: does not exist on {host}; start the command in a folder that all nodes share")


Do = Callable[[WorkerSetup, Any], Any]  # the work on a piece, in a worker


class RayTasks:
    """A pool of Ray tasks. address: of the cluster to join; "": one is started here, and ended with the work.

    do: the work on a piece, a function that workers can import. cpus, gpus: what a piece reserves. threads: of a piece,
    whatever it reserves: results depend on them.
    """

    def __init__(
        self,
        run: Path,
        do: Do,
        journal: Journal,
        *,
        threads: int | None,
        code: Sequence[str],
        address: str,
        cpus: float,
        gpus: float,
    ) -> None:
        self.do, self.cpus, self.gpus, self.threads = do, cpus, gpus, threads or max(1, int(cpus))
        files = tuple(str(Path(file).absolute()) for file in code)
        self.setup = WorkerSetup(str(run.absolute()), secrets.token_hex(16), str(Path.cwd()), self.threads, files)
        self.ray = _connect(address)
        self.task = self.ray.remote(do_piece)
        self.running: dict[Any, Piece] = {}
        nodes = [node["Resources"] for node in self.ray.nodes() if node["Alive"]]
        self.nodes, self.slots = len(nodes), sum(map(self._room, nodes))
        if not self.slots:
            why = f"{cpus:g} CPUs and {gpus:g} GPUs per cell: no node of this cluster has so many free for one"
            if not address:
                self.ray.shutdown()
                raise UserError(f"--cpus-per-cell, --gpus-per-cell: {why}")
            journal.note(f"{why}; nothing begins until one joins")
        write_text(self.setup.probe, self.setup.token)

    def _room(self, resources: dict[str, float]) -> int:
        """How many pieces a node can do at a time."""
        wanted = {"CPU": self.cpus, "GPU": self.gpus}
        return int(min((resources.get(kind, 0.0) // each for kind, each in wanted.items() if each), default=1))

    @property
    def facts(self) -> dict[str, Any]:
        return {"on": "ray", "nodes": self.nodes, "threads": self.threads, "cpus": self.cpus, "gpus": self.gpus}

    @property
    def free(self) -> bool:
        """Ray queues what there is no room for."""
        return True

    def start(self, piece: Piece) -> Any:
        # Ray does not retry: `fill` does, and says so.
        options = {"num_cpus": self.cpus, "num_gpus": self.gpus, "max_retries": 0, "name": piece.id}
        handle = self.task.options(**options).remote(self.setup, self.do, piece)
        self.running[handle] = piece
        return handle

    def finished(self, handles: Sequence[Any], seconds: float) -> list[Any]:
        return self.ray.wait(list(handles), num_returns=1, timeout=seconds)[0] if handles else []

    def result(self, handle: Any) -> Any:
        del self.running[handle]
        try:
            error, result = self.ray.get(handle)
        except self.ray.exceptions.RayTaskError:  # a mistake in the program, which would come again
            raise
        except self.ray.exceptions.RayError as death:
            raise WorkerDied(type(death).__name__) from None
        if error:
            raise UserError(error)
        return result

    def stop(self) -> None:
        for handle in self.running:
            self.ray.cancel(handle, force=True)
        self.running.clear()
        self.ray.shutdown()
        self.setup.probe.unlink(missing_ok=True)


def _refuse_silent(address: str) -> None:
    """UserError if nothing listens at host:port, for which Ray itself would wait ten minutes."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if host and port.isdecimal():
        try:
            socket.create_connection((host.strip("[]"), int(port)), timeout=ANSWER).close()
        except (OSError, OverflowError) as error:
            raise UserError(f"--address {address}: no Ray cluster answers there ({error})") from None


def _connect(address: str) -> Any:
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    if not address:
        os.environ.update(LOCAL)  # before it is imported
    try:
        import ray
    except ImportError:
        raise UserError("--on ray needs the package ray: pip install 'bertvision[ray]'") from None
    _refuse_silent(address)
    try:
        options: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR"}
        options |= {} if address else {"include_dashboard": False}
        ray.init(address or "local", **options)
    except (ConnectionError, ValueError, RuntimeError) as error:
        reason = " ".join(str(error).split())[:200]
        what = f"--address {address}: no Ray cluster answers there" if address else "--on ray: Ray does not start here"
        raise UserError(f"{what} ({reason})") from None
    return ray


def do_piece(setup: WorkerSetup, do: Do, piece: Any) -> tuple[str, Any]:
    """Does a piece in a worker: the text of an error the user can fix, or "", and the result."""
    import torch

    from bertvision.registry import load_code

    try:
        setup.refuse_elsewhere()
        os.chdir(setup.cwd)  # paths in a recipe may be relative
        torch.set_num_threads(setup.threads)
        for file in [file for file in setup.code if file not in _code]:
            load_code(Path(file))
            _code.add(file)
        return "", do(setup, piece)
    except UserError as error:
        return str(error), None


def do_cell(setup: WorkerSetup, cell: Any) -> None:
    """The work on a cell of a study."""
    from bertvision.train import make_run

    run = RunDir.open(Path(setup.run))
    Cells(make_run(run.recipe(), run.path, quiet=True)).run(cell, PATIENCE)


@dataclass(frozen=True, slots=True)
class ShardPiece:
    """A shard of a store of states. tap: the arguments of `Tap`, by name, but the study."""

    number: int
    tap: tuple[tuple[str, Any], ...]

    @property
    def id(self) -> str:
        return f"shard-{self.number:05d}"


def do_shard(setup: WorkerSetup, piece: ShardPiece) -> str:
    """Writes a shard; its checksum."""
    from bertvision.train.study import Study

    if (key := (setup.token, piece.tap)) not in _taps:
        _taps.clear()
        _taps[key] = Tap(Study.open(Path(setup.run), quiet=True), **dict(piece.tap))
    return _taps[key].write_one(piece.number)


def tap_on_ray(source: Tap, arguments: dict[str, Any], options: dict[str, Any]) -> dict[str, Any]:
    """Writes a store whose shards are tasks of Ray; facts about it. arguments: of `Tap`. options: of `RayTasks`."""
    study, workers = source.study, dict[str, Any]()

    def elsewhere(numbers: Sequence[int], note: Note) -> None:
        if numbers:
            pool = RayTasks(study.directory, do_shard, study.journal, **options)
            workers.update(pool.facts)
            pieces = [ShardPiece(number, tuple(sorted(arguments.items()))) for number in numbers]
            view = PiecesView(study.journal, "shards", len(pieces), len(pieces), None)
            run_pieces(pieces, pool, view, done=lambda piece, checksum: note(piece.number, checksum))

    facts = source.write(elsewhere)
    return facts | ({"workers": workers} if workers else {})


@dataclass(frozen=True, slots=True)
class RoundPart:
    """Every `world`-th trial of a round of a search, from `rank` on. search: the arguments of `Search`, by name."""

    round: str
    rank: int
    world: int
    search: tuple[tuple[str, int], ...]

    @property
    def id(self) -> str:
        return f"{self.round}/{self.rank}-of-{self.world}"


def do_search(setup: WorkerSetup, piece: Any) -> Any:
    """The tuning that a search begins with, or a part of a round: its outcomes."""
    from bertvision.train.study import Study

    if not isinstance(piece, RoundPart):
        return do_cell(setup, piece)
    run = Path(setup.run)
    study = Study(RunDir.open(run).recipe(), run, quiet=True, cell=piece.id)
    search = Search(study, **dict(piece.search))
    own = search.directory / f"{piece.round}.parts" / f"{piece.rank}-of-{piece.world}"
    claim(own, patience=PATIENCE)
    try:
        return search.part(piece.round, piece.rank, piece.world)
    finally:
        release(own)


def search_on_ray(search: Search, options: dict[str, Any]) -> list[dict[str, Any]]:
    """Runs a search whose tuning, and whose rounds in parts, are tasks of Ray; its rows. options: of `RayTasks`."""
    study, cells, arguments = search.study, Cells(search.study), {"trials": search.wanted, "size": search.size}
    with cells.shared():
        pool = RayTasks(study.directory, do_search, study.journal, **options)

    def do_round(trial_round: Round) -> Outcomes:
        begun = [int(part.name.rpartition("-")[2]) for part in trial_round.parts.glob("*-of-*")]
        world = (
            begun[0] if begun else max(1, min(pool.slots, len(trial_round.trials)))
        )  # a killed round stays as it began
        parts = [RoundPart(trial_round.path.stem, rank, world, tuple(arguments.items())) for rank in range(world)]
        outcomes: Outcomes = {}
        view = PiecesView(study.journal, f"parts of {trial_round.name}", world, world, stage)
        run_pieces(parts, pool, view, done=lambda piece, outcome: outcomes.update(outcome), ends=False)
        trial_round.take(outcomes)
        return outcomes

    def stage(part: Piece) -> tuple[str, float]:
        return last_stage(RunDir(study.directory, study.recipe, part.id).log_file)

    try:
        with cells.shared():
            tuning = [cell for cell in cells.all[:1] if not cells.is_done(cell)]
            run_pieces(tuning, pool, PiecesView(study.journal, "cells", 1, len(tuning), cells.stage), ends=False)
        study.runtime = runtime_of(study.run_dir, "cpu")  # only the workers may have a device
        rows = search.run(do_round)
        study.run_dir.add_facts(cells=pool.facts)
        study.run_dir.gather()
        return rows
    finally:
        pool.stop()
