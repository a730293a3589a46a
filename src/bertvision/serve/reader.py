"""Reader: answers questions on texts, labels and scores texts. A study leaves one."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from bertvision.data.batches import by_length
from bertvision.data.windows import Windows
from bertvision.errors import UserError, nearest
from bertvision.serve.answers import (
    Options,
    QuestionInput,
    check_answerable,
    check_pairs,
    collector_of,
    cut,
    entities_of,
    pairs_of,
    rank,
    results_of,
    text_pairs,
)
from bertvision.serve.config import ReaderConfig
from bertvision.serve.reader_dir import GRAPH, Storage, find_reader, read_card, read_config, write_reader

if TYPE_CHECKING:  # torch, which an exported reader does not need, or ONNX Runtime, which others do not
    from bertvision.serve.engines import TorchEngine
    from bertvision.serve.onnx_engine import Engine

BATCH_TOKENS = 1024  # of all layers at once: what heads read of them stays in the cache
DEFAULTS = Options()
Progress = Callable[[int, int], None]


class Reader:
    """Answers questions on texts of any length, and says "no answer" where there is none. May be used by many threads.

    reader(question="Who?", context="Ada did.") -> {"answer", "score", "start", "end", "no_answer_score"}
    """

    def __init__(
        self, config: ReaderConfig, engine: "Engine", *, about: Mapping[str, Any], card: str = "", name: str = "reader"
    ) -> None:
        """about: how its heads are built, see `write_reader`. card: its README.md."""
        self.config, self.engine = config, engine
        self.about, self.card, self.name = dict(about), card, name

    @classmethod
    def from_pretrained(
        cls,
        name: str | Path,
        *,
        engine: str = "auto",
        backbone: str | None = None,
        device: str = "cpu",
        precision: str = "fp32",
        exit: float | None = None,
    ) -> "Reader":
        """The reader in a directory, of the package, or of the hub.

        engine: "torch", "onnx" for one that was exported or prepared (`bertvision export`), or "auto", whichever the
        directory is for.
        backbone: where its untuned encoder is now, if not where config.json says.
        device: such as "cuda"; "auto" is a GPU, if there is one. precision: of the encoder's products, "fp32", "bf16"
        or "auto", whichever is quicker. exit: see `leaving`.
        """
        from bertvision.serve.onnx_engine import load_engine

        directory = find_reader(str(name))
        if engine == "onnx" and not (directory / GRAPH).is_file():
            from bertvision.serve.prepared import prepared_path

            prepared = prepared_path(directory)
            directory = prepared if prepared.is_dir() else directory
        config, loaded, about = load_engine(directory, read_config(directory), engine, backbone, device, precision)
        reader = cls(config, loaded, about=about, card=read_card(directory), name=Path(name).name or str(name))
        return reader if exit is None else reader.leaving(exit)

    def save_pretrained(self, path: str | Path, *, storage: Storage = "fp32") -> Path:
        """Writes the reader to a directory. storage: "fp16" halves its files."""
        engine = self.torch_engine("saving")
        write_reader(Path(path), self.config, engine.backbone, engine.heads, self.about, self.card, storage)
        return Path(path)

    def push_to_hub(self, name: str, *, private: bool = False, storage: Storage = "fp16") -> str:
        """Uploads the reader to the hub as `name` ("user/name"); its address."""
        from bertvision.backbone.loading import upload_folder

        self.torch_engine("push_to_hub")
        if Path(self.config.backbone).is_absolute():
            raise UserError(
                f"push_to_hub: its backbone is {self.config.backbone}, which only this machine has; upload that "
                'encoder first, and load the reader with backbone="its name on the hub"'
            )
        with TemporaryDirectory() as scratch:
            return upload_folder(self.save_pretrained(scratch, storage=storage), name, private=private)

    @classmethod
    def join(cls, readers: Mapping[str, "Reader"]) -> "Reader":
        """One reader with the tasks of several, on one backbone pass: {name: a reader with one task}.

        They must have the same encoder with the same tuning, such as none.
        """
        from bertvision.serve.card import join_cards
        from bertvision.serve.engines import TorchEngine

        if not readers:
            raise UserError("join: give at least one reader")
        first = next(iter(readers.values()))
        tasks, heads, about = {}, {}, {}
        for name, reader in readers.items():
            if len(reader.tasks) != 1:
                held = ", ".join(reader.tasks)
                raise UserError(f"join: {name}: has the tasks {held}; give readers with one task each")
            if why := _difference(first, reader):
                raise UserError(f"join: {name}: has {why}, so that one pass cannot serve both")
            (task,) = reader.tasks
            if reader.config.tasks[task].verb == "entities":
                raise UserError(f"join: {name}: labels the words of single texts; no pass can serve it and others")
            tasks[name], about[name] = reader.config.tasks[task], reader.about[task]
            heads[name] = reader.torch_engine("joining").heads[task]
        engine = TorchEngine(first.torch_engine("joining").backbone, heads, tasks)
        card = join_cards({name: reader.card for name, reader in readers.items()})
        name = " + ".join(reader.name for reader in readers.values())
        return cls(dataclasses.replace(first.config, tasks=tasks), engine, about=about, card=card, name=name)

    def assuming(self, answerable: float) -> "Reader":
        """The same reader for texts that hold the answer to this share of the questions, unless a call says otherwise.

        Its threshold moves by Bayes' rule, from the share in its tune set.
        """
        share, tasks = check_answerable(answerable), self.config.tasks
        moved = {name: task.assuming(share) if task.verb == "answer" else task for name, task in tasks.items()}
        config = dataclasses.replace(self.config, tasks=moved)
        return Reader(config, self.engine, about=self.about, card=self.card, name=self.name)

    def leaving(self, exit: float) -> "Reader":
        """The same reader, faster: a window that a lower read-out is sure of does not run through all blocks.

        exit: what that may cost of the main metric, such as 0.5 F1, on the reader's tune set. Needs a reader with
        exits, on a CPU in fp32; see `bertvision reader --exits`.
        """
        from bertvision.serve.exits import ExitEngine, rule_for

        engine, names = self.torch_engine("exit"), list(self.config.tasks)
        if len(names) != 1:
            raise UserError(f"exit: needs a reader with one task, not {', '.join(names)}")
        rule = rule_for(self.config.tasks[names[0]], exit)
        quicker = ExitEngine(engine, names[0], rule)
        return Reader(self.config, quicker, about=self.about, card=self.card, name=self.name)

    @property
    def is_calibrated(self) -> bool:
        """Whether `assuming` is possible."""
        return all(task.calibration for task in self.config.tasks.values() if task.verb == "answer")

    @property
    def tasks(self) -> tuple[str, ...]:
        """The names of its tasks."""
        return tuple(self.config.tasks)

    def __call__(
        self, question: QuestionInput = None, context: str | Sequence[str] | None = None, **options: Any
    ) -> Any:
        """The answer to a question on a context, or a list of them.

        question, context: a string or a list each (one string goes with all of the other's); or, as the first argument,
        a dictionary {"question": ..., "context": ...} or a list of such. Options, all by keyword:
        top_k = 1: how many answers; with more than 1, a list, best first.
        no_answer_threshold: the answer is "no answer" above this probability, 0 to 1; by default the reader's own rule
        holds. answerable: the share of questions that you expect to have an answer, between 0 and 1; by default that of
        the reader's tune set. layers = False: adds "layers", the share of each layer in the answer, embedding output
        first. max_answer_len: most tokens of an answer. handle_impossible_answer = False: never says "no answer".
        align_to_words = True: False leaves answers as the tokenizer cuts them, which may be within a word.

        A dictionary {"answer", "score", "start", "end", "no_answer_score"}: context[start:end] is the answer; score and
        no_answer_score are its probability, and that of there being none, among a fixed number of the best candidates.
        Candidates that differ by a comma or a word are one, with their probabilities added; the first is the most
        probable span, the others are in the order of these sums. No answer: "", 0, 0.
        """
        pairs, several = pairs_of(question, context)
        ranked = self.answers(pairs, **options)
        shaped: list[Any] = [answers[0] for answers in ranked] if options.get("top_k", 1) == 1 else list(ranked)
        return shaped if several else shaped[0]

    def answers(
        self, pairs: Sequence[tuple[str, str]], *, progress: Progress | None = None, **options: Any
    ) -> list[list[dict[str, Any]]]:
        """Of each (question, context) its `top_k` best answers, at least one, best first. options: as for `__call__`.

        progress: called with the tokens read so far and in all.
        """
        check_pairs(pairs)
        name = self.task_for("answer")
        return self._read(pairs, [name], Options.of(**options), progress)[name]

    def everything(self, pairs: Sequence[tuple[str, str]], **options: Any) -> list[dict[str, Any]]:
        """Of each pair of texts {task's name: its result} for all tasks, from one backbone pass.

        Windows are those of the spans. Results are as from `answers`, `classify` and `similarity`.
        """
        check_pairs(pairs)
        if any(config.verb == "entities" for config in self.config.tasks.values()):
            raise UserError("everything: this reader labels the words of single texts; call entities(texts)")
        results = self._read(pairs, list(self.tasks), Options.of(**options))
        return [dict(zip(results, of_pair)) for of_pair in zip(*results.values())]

    def tokens(self, pairs: Sequence[tuple[str, str]]) -> list[int]:
        """How many tokens each (question, context) costs, all of its windows together."""
        check_pairs(pairs)
        windows = cut(self.engine.tokenizer, pairs, self.config.tasks[self.task_for("answer")])
        sizes = [0] * len(pairs)
        for example, length in zip(windows.example.tolist(), windows.lengths.tolist()):
            sizes[example] += length
        return sizes

    def classify(
        self, texts: str | Sequence[str], pairs: str | Sequence[str] | None = None, *, task: str | None = None
    ) -> Any:
        """{"label", "score", "scores": {label: probability}} of a text, or of a pair of texts; a list for lists.

        task: which of the reader's tasks, where several give labels.
        """
        return self._one_task("classify", texts, pairs, task)

    def similarity(
        self, a: str | Sequence[str], b: str | Sequence[str] | None = None, *, task: str | None = None
    ) -> Any:
        """The score of a pair of texts (or of one text), on the scale it was trained on; a list for lists."""
        return self._one_task("similarity", a, b, task)

    def entities(self, texts: str | Sequence[str], *, task: str | None = None) -> Any:
        """The entities of a text in order, {"label", "text", "start", "end", "score"}; a list of such for a list.

        text[start:end] is the entity; score is the probability of the label of its least probable word.
        """
        return self._one_task("entities", texts, task=task)

    def _one_task(
        self, verb: str, a: str | Sequence[str], b: str | Sequence[str] | None = None, task: str | None = None
    ) -> Any:
        name = self.task_for(verb, task)
        examples, several = text_pairs(a, b)
        results = self._read(examples, [name])[name]
        return results if several else results[0]

    def _read(
        self,
        texts: Sequence[tuple[str, ...]],
        names: Sequence[str],
        options: Options = DEFAULTS,
        progress: Progress | None = None,
    ) -> dict[str, list[Any]]:
        """{task's name: a result per text or pair}, all from one pass over the windows of the first task with spans."""
        configs = {name: options.over(self.config.tasks[name]) for name in names}
        spans = next((config for config in configs.values() if config.verb == "answer"), configs[names[0]])
        windows = cut(self.engine.tokenizer, texts, spans)
        collectors: dict[str, Any] = {
            name: collector_of(config, texts, windows, options.top_k) for name, config in configs.items()
        }
        self.read_windows(windows, collectors, progress)
        results: dict[str, list[Any]] = {}
        for name, collector in collectors.items():
            config = configs[name]
            if config.verb == "entities":
                results[name] = entities_of(collector, texts)
                continue
            predictions = collector.finish()
            if config.verb != "answer":
                results[name] = results_of(predictions, windows)
                continue
            rankings = [rank(predictions, row, pair[-1], config, options) for row, pair in enumerate(texts)]
            if options.layers:
                from bertvision.serve.engines import add_layers

                add_layers(self.torch_engine("layers"), name, collector, rankings)
            results[name] = [ranking.answers for ranking in rankings]
        return results

    def read_windows(self, windows: Windows, collectors: Mapping[str, Any], progress: Progress | None = None) -> None:
        """One pass over windows; collectors: {task's name: what takes its logits}. progress: as for `answers`."""
        lengths = windows.lengths
        done, total = 0, int(lengths.sum())
        for index in by_length(lengths, BATCH_TOKENS):
            logits = self.engine.logits(self.engine.collate(windows, index), list(collectors))
            for name, collector in collectors.items():
                collector.add(index, logits[name])
            done += int(lengths[index].sum())
            if progress:
                progress(done, total)

    def task_for(self, verb: str, name: str | None = None) -> str:
        """The name of the task to use: the one asked for, or the only one of its kind."""
        fitting = [key for key, config in self.config.tasks.items() if config.verb == verb]
        if name is not None and name not in fitting:
            raise UserError(f"task: {name!r} is not a task for {verb}; {nearest(name, fitting or self.tasks)}")
        if not fitting:
            raise UserError(f"{self.name}: its tasks are {', '.join(self.tasks)}, none for {verb}; take another reader")
        if name is None and len(fitting) > 1 and verb != "answer":
            raise UserError(f"task: this reader has several for {verb}; name one of {', '.join(fitting)}")
        return name or fitting[0]

    def torch_engine(self, what: str) -> "TorchEngine":
        """Its engine, or UserError if it is an exported reader. what: needs it."""
        if not hasattr(self.engine, "backbone"):
            raise UserError(f'{what}: an exported reader cannot; load the one it was made from, with engine="torch"')
        return self.engine  # type: ignore[return-value]


def _difference(first: Reader, second: Reader) -> str:
    """Why two readers cannot share an encoder; empty if they can."""
    if len({task.windows.pairs for reader in (first, second) for task in reader.config.tasks.values()}) > 1:
        return "pairs encoded apart, or together where the others are not"
    if first.config.fingerprint != second.config.fingerprint:
        return f"another backbone ({second.config.backbone}, not {first.config.backbone})"
    if first.config.tuning != second.config.tuning:
        return "a backbone tuned in another way"
    if first.config.tuning:
        from bertvision.backbone.checkpoint import trained_state

        ours, theirs = (trained_state(reader.torch_engine("joining").backbone.model) for reader in (first, second))
        if ours.keys() != theirs.keys() or not all(ours[key].equal(theirs[key]) for key in ours):
            return "a backbone tuned on something else"
    return ""
