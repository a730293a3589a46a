"""Reader: what a study leaves for users. Questions in, answers out; texts in, labels and scores out."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from bertvision.backbone.loading import upload_folder
from bertvision.data.batches import by_length, collate
from bertvision.data.windows import Windows, make_windows
from bertvision.errors import UserError, nearest
from bertvision.serve import directory
from bertvision.serve.asked import Asked, Options, check_options, check_pairs, pairs_of, refuse_unknown, text_pairs
from bertvision.serve.config import ReaderConfig, TaskConfig
from bertvision.serve.engine import Engine, TorchEngine
from bertvision.serve.engines import load_engine
from bertvision.serve.layers import layer_shares
from bertvision.serve.spans import as_records, find_spots, rank, span_collector
from bertvision.serve.texts import cut_texts, results, text_collector

BATCH_TOKENS = 1024  # of all layers at once: what heads read of them stays in the cache
Progress = Callable[[int, int], None]
KEYWORDS = ("top_k", "no_answer_threshold", "layers", "max_answer_len", "handle_impossible_answer", "align_to_words")


class Reader:
    """Answers questions on texts of any length, and says "no answer" where there is none. May be used by many threads.

    reader(question="Who?", context="Ada did.") -> {"answer", "score", "start", "end", "no_answer_score"}
    """

    def __init__(
        self, config: ReaderConfig, engine: Engine, *, about: Mapping[str, Any], card: str = "", name: str = "reader"
    ) -> None:
        """about: how its heads are built, see weights.write_reader. card: its README.md."""
        self.config, self.engine = config, engine
        self.about, self.card, self.name = dict(about), card, name

    @classmethod
    def from_pretrained(cls, name: str | Path, *, engine: str = "auto", backbone: str | None = None) -> "Reader":
        """The reader in a directory, of the package, or of the hub.

        engine: what runs it: "torch", "onnx" for one that was exported, or "auto", whichever the directory is for.
        backbone: where its untuned encoder is now, if not where config.json says.
        """
        place = directory.find_reader(str(name))
        config = directory.read_config(place)
        config, found, about = load_engine(place, config, engine, backbone)
        card = place / directory.CARD
        text = card.read_text(encoding="utf-8", errors="replace") if card.is_file() else ""
        return cls(config, found, about=about, card=text, name=Path(name).name or str(name))

    def save_pretrained(self, path: str | Path, *, storage: directory.Storage = "fp32") -> Path:
        """Writes the reader to a directory. storage: "fp16" halves its files."""
        from bertvision.serve.weights import write_reader

        engine = self._torch("saving")
        write_reader(Path(path), self.config, engine.backbone, engine.heads, self.about, self.card, storage=storage)
        return Path(path)

    def push_to_hub(self, name: str, *, private: bool = False, storage: directory.Storage = "fp16") -> str:
        """Uploads the reader to the hub as `name` ("user/name"); its address."""
        self._torch("push_to_hub")
        if Path(self.config.backbone).is_absolute():
            raise UserError(
                f"push_to_hub: its backbone is {self.config.backbone}, which only this machine has; upload that "
                'encoder first, and load the reader with backbone="its name on the hub"'
            )
        with TemporaryDirectory() as scratch:
            return upload_folder(self.save_pretrained(scratch, storage=storage), name, private=private)

    @classmethod
    def join(cls, readers: Mapping[str, "Reader"]) -> "Reader":
        """One reader that does what several do, on one backbone pass: {name: a reader with one task}.

        They must stand on the same encoder with the same tuning, such as none.
        """
        from bertvision.serve.joining import join, join_cards

        config, engine, about = join({name: (r.config, r._torch("joining"), r.about) for name, r in readers.items()})
        card = join_cards({name: one.card for name, one in readers.items()})
        return cls(config, engine, about=about, card=card, name=" + ".join(r.name for r in readers.values()))

    @property
    def tasks(self) -> tuple[str, ...]:
        """The names of the tasks it can do."""
        return tuple(self.config.tasks)

    def __call__(
        self,
        question: Asked = None,
        context: str | Sequence[str] | None = None,
        *,
        top_k: int = 1,
        no_answer_threshold: float | None = None,
        layers: bool = False,
        max_answer_len: int | None = None,
        handle_impossible_answer: bool | None = None,
        align_to_words: bool = True,
        **unknown: Any,
    ) -> Any:
        """The answer to a question on a context, or a list of them.

        question, context: a string or a list each (one string goes with all of the other's); or, as the first argument,
        a dictionary {"question": ..., "context": ...} or a list of such.
        top_k: how many answers; with more than 1, a list, best first.
        no_answer_threshold: "no answer" is said where its probability lies above, 0 to 1; by default where the reader's
        own tuning says so. layers: adds "layers", the share of each layer in the answer, embedding output first.
        max_answer_len: most tokens of an answer. handle_impossible_answer: False never says "no answer".
        align_to_words: False leaves answers as the tokenizer cuts them, which may be within a word.

        A dictionary {"answer", "score", "start", "end", "no_answer_score"}: context[start:end] is the answer; score and
        no_answer_score are its probability, and that of there being none, among the best candidates, of which a reader
        keeps a fixed number. No answer: "", 0, 0.
        """
        refuse_unknown(unknown, KEYWORDS)
        options = check_options(
            top_k, no_answer_threshold, layers, max_answer_len, handle_impossible_answer, align_to_words
        )
        pairs, several = pairs_of(question, context)
        found = self._answers(pairs, options)
        shaped: list[Any] = [ranked[0] for ranked in found] if options.top_k == 1 else list(found)
        return shaped if several else shaped[0]

    def answers(
        self,
        pairs: Sequence[tuple[str, str]],
        *,
        top_k: int = 1,
        no_answer_threshold: float | None = None,
        layers: bool = False,
        progress: Progress | None = None,
    ) -> list[list[dict[str, Any]]]:
        """Of each (question, context) its `top_k` best answers, at least one, best first; see `__call__`.

        progress: called with the tokens read so far and in all.
        """
        return self._answers(pairs, check_options(top_k, no_answer_threshold, layers), progress)

    def everything(
        self, pairs: Sequence[tuple[str, str]], *, top_k: int = 1, no_answer_threshold: float | None = None
    ) -> list[dict[str, Any]]:
        """Of each pair of texts {task's name: its result} for all tasks, from one backbone pass.

        Windows are those of the spans. Results are as from `answers`, `classify` and `similarity`.
        """
        options = check_options(top_k, no_answer_threshold)
        check_pairs(pairs)
        found = self._read(pairs, list(self.tasks), options)
        return [dict(zip(found, results)) for results in zip(*found.values())]

    def tokens(self, pairs: Sequence[tuple[str, str]]) -> list[int]:
        """How many tokens each (question, context) costs, all of its windows together."""
        check_pairs(pairs)
        windows = self._windows(pairs, self.config.tasks[self._task("spans")])[1]
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
        name = self._task("labels", task)
        examples, several = text_pairs(texts, pairs)
        found = self._one_pass(examples, name)
        return found if several else found[0]

    def similarity(
        self, a: str | Sequence[str], b: str | Sequence[str] | None = None, *, task: str | None = None
    ) -> Any:
        """The score of a pair of texts (or of one text), on the scale it was trained on; a list for lists."""
        name = self._task("score", task)
        examples, several = text_pairs(a, b)
        found = self._one_pass(examples, name)
        return found if several else found[0]

    def _answers(self, pairs: Sequence[tuple[str, str]], options: Options, progress: Progress | None = None) -> Any:
        check_pairs(pairs)
        name = self._task("spans")
        return self._read(pairs, [name], options, progress)[name]

    def _read(
        self,
        pairs: Sequence[tuple[str, str]],
        names: Sequence[str],
        options: Options,
        progress: Progress | None = None,
    ) -> dict[str, list[Any]]:
        """{task's name: a result per pair}, all from one pass over the windows of the first task that has spans."""
        configs, top_k = {name: options.over(self.config.tasks[name]) for name in names}, options.top_k
        cutting = next((configs[name] for name in names if configs[name].task == "spans"), configs[names[0]])
        records, windows = self._windows(pairs, cutting)
        collectors: dict[str, Any] = {
            name: span_collector(records, windows, configs[name], top_k)
            if configs[name].task == "spans"
            else text_collector(len(pairs), windows, configs[name])
            for name in names
        }
        self.read_windows(windows, collectors, progress)
        found: dict[str, list[Any]] = {}
        for name, collector in collectors.items():
            config, kept = configs[name], collector.finish()
            if config.task != "spans":
                found[name] = results(kept, windows)
            else:
                rankings = [rank(kept, row, pair[1], config, options) for row, pair in enumerate(pairs)]
                if options.layers and rankings:
                    self._add_layers(name, collector, rankings)
                found[name] = [ranking.answers for ranking in rankings]
        return found

    def _add_layers(self, name: str, collector: Any, rankings: Sequence[Any]) -> None:
        engine = self._torch("layers")
        rows = [row for row, ranking in enumerate(rankings) for _ in ranking.answers]
        chars = [place for ranking in rankings for place in ranking.chars]
        shares = layer_shares(engine, name, collector.windows, find_spots(collector, rows, chars))
        for answer, share in zip((one for ranking in rankings for one in ranking.answers), shares):
            answer["layers"] = share

    def _windows(self, pairs: Sequence[tuple[str, str]], config: TaskConfig) -> tuple[Any, Windows]:
        records = as_records(pairs)
        return records, make_windows(self.engine.tokenizer, records, config.windows.max_length, config.windows.overlap)

    def _one_pass(self, examples: Sequence[tuple[str, ...]], name: str) -> list[Any]:
        config = self.config.tasks[name]
        windows = cut_texts(self.engine.tokenizer, examples, config)
        collector = text_collector(len(examples), windows, config)
        self.read_windows(windows, {name: collector})
        return results(collector.finish(), windows)

    def read_windows(self, windows: Windows, collectors: Mapping[str, Any], progress: Progress | None = None) -> None:
        """One pass over windows; collectors: {task's name: what takes its logits}. progress: as for `answers`."""
        lengths = windows.lengths
        done, total = 0, int(lengths.sum())
        for index in by_length(lengths, BATCH_TOKENS):
            logits = self.engine.logits(collate(windows, index, self.engine.pad), list(collectors))
            for name, collector in collectors.items():
                collector.add(index, logits[name])
            done += int(lengths[index].sum())
            if progress:
                progress(done, total)

    def _task(self, kind: str, name: str | None = None) -> str:
        """The name of the task to use: the one asked for, or the only one of its kind."""
        fitting = [key for key, config in self.config.tasks.items() if config.task == kind]
        if name is not None and name not in fitting:
            raise UserError(
                f"task: this reader has no task {name!r} that gives {kind}; {nearest(name, fitting or self.tasks)}"
            )
        if not fitting:
            raise UserError(f"{self.name}: this reader does {', '.join(self.tasks)}, not {kind}; take another reader")
        if name is None and len(fitting) > 1 and kind != "spans":
            raise UserError(f"task: this reader has several that give {kind}; name one of {', '.join(fitting)}")
        return name or fitting[0]

    def _torch(self, what: str) -> TorchEngine:
        if not isinstance(self.engine, TorchEngine):
            raise UserError(f'{what}: an exported reader cannot; load the one it was made from, with engine="torch"')
        return self.engine
