"""Real runs: a tiny recipe, and processes of their own that run `bertvision` and can be killed.

from runs import Command, batch_of, bertvision, encoder, questions, recipe_of, tiny_recipe
"""

import atexit
import multiprocessing
import os
import random
import resource
import signal
import socket
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from multiprocessing.connection import Connection
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch

from bertvision import toml
from bertvision.backbone.backbone import Backbone
from bertvision.data.batches import Batch
from bertvision.data.sources import load_articles
from bertvision.data.squad import write_articles
from bertvision.evaluate.ensemble import Ensemble, Member
from bertvision.heads import Head
from bertvision.recipe import DataRecipe, EvaluateRecipe, Recipe, from_table
from bertvision.runtime import start_runtime
from bertvision.states import write
from bertvision.tasks import Dataset, Spans
from bertvision.train import scoring
from bertvision.train.bank import HeadBank
from bertvision.train.progress import Journal
from bertvision.train.scoring import Setting, predict
from devices import DEVICE
from encoders import WORDS, save_tiny

# A process that has imported everything forks off each command: a start takes milliseconds instead of seconds.
processes = multiprocessing.get_context("forkserver")
processes.set_forkserver_preload(
    [
        "bertvision.train.evaluation",
        "optuna.storages.journal",
        "bertvision.report.page",
        "transformers.models.bert.modeling_bert",
        "matplotlib.backends.backend_agg",
        "matplotlib.backends.backend_svg",
    ]
)

ARTICLE = 10  # questions
FILE_EVENTS = {"open", "os.mkdir", "os.rename"}  # what Python tells of before it does it
LENGTHS = {"max_length": 64, "overlap": 8}  # of windows in tokens


@cache
def _place() -> Path:
    """A directory for what tests share, until they are all done."""
    directory = TemporaryDirectory(prefix="bertvision-")
    atexit.register(directory.cleanup)
    return Path(directory.name)


@cache
def encoder(family: str = "bert") -> str:
    """The directory of a tiny encoder; one for all tests, which only read it."""
    return str(save_tiny(_place() / f"tiny-{family}", family))


@cache
def questions(count: int, seed: int = 0) -> str:
    """A SQuAD file of short texts in words that the tiny tokenizers know; a third is unanswerable."""
    path = _place() / f"questions-{count}-{seed}.json"
    write_articles(path, articles(count, seed))
    return str(path)


def articles(count: int, seed: int = 0) -> list[dict]:
    """What `questions` writes: one article per ten questions, one paragraph per question."""
    chance, words = random.Random(seed), WORDS.split()
    paragraphs = []
    for number in range(count):
        text = chance.choices(words, k=chance.randint(8, 16))
        first = chance.randrange(len(text))
        answer = " ".join(text[first : first + chance.randint(1, 3)])
        answers = [{"text": answer, "answer_start": len(" ".join([*text[:first], ""]))}] if number % 3 else []
        question = f"what is {answer if answers else 'the world'}"
        qa = {"id": f"{seed}-{number}", "question": question, "answers": answers, "is_impossible": not answers}
        paragraphs.append({"context": " ".join(text), "qas": [qa]})
    return [
        {"title": f"article {start}", "paragraphs": paragraphs[start : start + ARTICLE]}
        for start in range(0, count, ARTICLE)
    ]


def recipe_of(**tables: object) -> Recipe:
    """A study of a second: a tiny encoder, 48 questions, two checkpoints, two heads. tables: entries laid over it."""
    table: dict = {
        "backbone": {"name": encoder()},
        "data": {
            "train": questions(48),
            "tune": questions(24, 1),
            "test": questions(24, 2),
            "max_length": 64,
            "overlap": 8,
        },
        "finetune": {"epochs": 1, "checkpoints": [0.5], "batch_size": 8, "learning_rate": 1e-3},
        "bank": {"epochs": 1, "batch_size": 8},
        "evaluate": {"nbest": 3},
        "runtime": {"device": DEVICE},
        "heads": [{"kind": "pool"}, {"kind": "compress", "size": 8}],
    }
    for key, value in tables.items():
        table[key] = table[key] | value if isinstance(value, dict) else value
    return from_table(table)


def tiny_recipe(path: Path, **tables: object) -> Path:
    """`recipe_of` written to a file."""
    path.write_text(toml.write(recipe_of(**tables)), encoding="utf-8")
    return path


def without_times(rows: Sequence[Mapping]) -> list[dict]:
    """Score rows, or those of a search, without what the clock decides."""
    return [{k: v for k, v in row.items() if not k.endswith(("seconds", "ms_per_question"))} for row in rows]


def load(recipe: Recipe) -> tuple[Backbone, Spans, dict[str, Dataset]]:
    """The untouched backbone of a recipe, its task and its data."""
    backbone, task = Backbone.load(recipe.backbone.name, start_runtime(recipe.runtime)), Spans()
    return backbone, task, task.load(recipe.data, backbone.tokenizer, seed=0)


def members_of(bank: HeadBank) -> dict[Member, Head]:
    """The heads of a bank as members of one checkpoint."""
    return {Member(name, 1, 1.0): head for name, head in bank.items()}


@dataclass(frozen=True)
class Done:
    """How a command ended."""

    code: int
    out: str
    err: str


class Command:
    """`bertvision ARGS` in a process of its own; cwd: where it runs and where its output goes.

    largest: it cannot write files of more bytes, as on a disk that is full. env: variables it finds. hold: once
    something in `cwd` matches this pattern, it stands still at its next file, for `kill_when` to find it there.
    """

    def __init__(
        self,
        *args: object,
        cwd: Path,
        largest: int = resource.RLIM_INFINITY,
        env: Mapping[str, str] | None = None,
        hold: str = "",
    ) -> None:
        self.streams = [cwd / f".stream-{time.monotonic_ns()}-{number}" for number in (1, 2)]
        words = [str(arg) for arg in args]
        self.process = processes.Process(
            target=_main, args=(words, str(cwd), *map(str, self.streams), largest, env or {}, hold)
        )
        self.process.start()

    @property
    def running(self) -> bool:
        return self.process.is_alive()

    def kill(self) -> None:
        """SIGKILL: no handler, no flush, no clean-up."""
        if self.process.pid is not None:
            os.kill(self.process.pid, signal.SIGKILL)
        self.process.join()

    def kill_when(self, condition: Callable[[], bool], seconds: float = 60) -> bool:
        """Kills it as soon as `condition` holds; False if it ended before that."""
        end = time.monotonic() + seconds
        while self.running and time.monotonic() < end:
            if condition():
                self.kill()
                return True
        self.process.join(timeout=1)
        assert not self.running, "it went on for too long"
        assert not self.process.exitcode, self.wait()
        return False

    def wait(self) -> Done:
        self.process.join()
        out, err = (path.read_text(encoding="utf-8") for path in self.streams)
        for path in self.streams:
            path.unlink()
        return Done(int(self.process.exitcode or 0), out, err)


def bertvision(*args: object, cwd: Path, largest: int = resource.RLIM_INFINITY) -> Done:
    """Runs `bertvision ARGS` to its end."""
    return Command(*args, cwd=cwd, largest=largest).wait()


def together(world: int, *args: object, cwd: Path, env: Mapping[str, str] | None = None) -> list[Command]:
    """`torchrun --nproc-per-node WORLD -m bertvision ARGS`, as commands that can be killed one by one. env: variables
    they find; SHARD_BYTES: of stores, SLOW: seconds that each batch of scoring and each shard takes longer, LATE: the
    process that complains a second later."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        shared = {"WORLD_SIZE": str(world), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free.getsockname()[1])}
    return [Command(*args, cwd=cwd, env={**shared, **(env or {}), "RANK": str(rank)}) for rank in range(world)]


def _main(words: Sequence[str], cwd: str, out: str, err: str, largest: int, env: Mapping[str, str], hold: str) -> None:
    os.environ.update(env)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored where the tests run in the background of a shell
    resource.setrlimit(resource.RLIMIT_FSIZE, (largest, resource.RLIM_INFINITY))
    for descriptor, path in ((1, out), (2, err)):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), descriptor)
    os.chdir(cwd)
    if hold:
        sys.addaudithook(lambda event, _: _stand_still(Path(cwd), hold) if event in FILE_EVENTS else None)
    torch.set_num_threads(1)  # the same order of additions in every process
    sys.argv = ["bertvision", *words]
    if size := env.get("SHARD_BYTES"):
        write.write_store.__kwdefaults__["shard_bytes"] = int(size)
    if pause := env.get("SLOW"):
        scoring._batch_logits, write.write_shard = (
            _slower(work, float(pause)) for work in (scoring._batch_logits, write.write_shard)
        )
    from bertvision import cli

    if env.get("LATE") == env.get("RANK", "0"):
        print_error = cli._print_error
        cli._print_error = lambda text: (time.sleep(1), print_error(text))[1]
    cli.main()


def _stand_still(directory: Path, pattern: str) -> None:
    while next(directory.glob(pattern), None) is not None:
        time.sleep(1)


def _slower(work: Callable, seconds: float) -> Callable:
    def slow(*args: object) -> object:
        found = work(*args)
        time.sleep(seconds)
        return found

    return slow


def peak_of_prediction(encoder: str, path: str, count: int) -> float:
    """The peak memory, in MiB, of a process that predicts the first `count` of the `questions` in a file."""
    receiver, sender = processes.Pipe(duplex=False)
    process = processes.Process(target=_predict, args=(encoder, path, count, sender))
    process.start()
    sender.close()
    try:
        return receiver.recv()
    finally:
        process.join()


def _predict(encoder: str, path: str, count: int, answer: Connection) -> None:
    torch.set_num_threads(1)
    backbone, task = Backbone.load(encoder), Spans()
    chosen = load_articles(path)[: count // ARTICLE]
    data = task.from_articles(path, chosen, backbone.tokenizer, DataRecipe(**LENGTHS))
    assert len(data.windows) == count
    bank = HeadBank([{"kind": "last"}, {"kind": "pool"}], layers=backbone.layers, width=backbone.width, task="spans")
    heads = members_of(bank)
    ensembles = [*map(Ensemble.of, heads), Ensemble(tuple(heads), chosen="pair")]
    predict(backbone, heads, ensembles, data, Setting(task, EvaluateRecipe(), Journal(quiet=True)))
    answer.send(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)


ROWS = [5, 17, 1, 12, 16, 3, 17]


def batch_of(backbone: Backbone) -> Batch:
    """Rows in no order of length, each of its own tokens."""
    tokens = max(ROWS)
    mask = torch.arange(tokens) < torch.tensor(ROWS)[:, None]
    known = torch.arange(len(ROWS) * tokens).view(-1, tokens) % 7 + backbone.tokenizer.token_to_id("e")
    ids = torch.where(mask, known, backbone.pad)
    return Batch(np.arange(len(ROWS)), ids, torch.zeros_like(ids), mask, torch.zeros(len(ROWS), 2).long())
