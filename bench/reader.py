"""Questions per second: a reader against a plain transformers loop, heads against the backbone, torch against ONNX.

python bench/reader.py [--quick] [--json] [--backbone marco] [--questions 64]

All that is compared runs in turns on the same questions with the same weights; each figure is the median of the rounds.
"""

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModel, AutoTokenizer

from bertvision.backbone.backbone import Backbone
from bertvision.backbone.loading import find_encoder
from bertvision.data.batches import by_length, collate
from bertvision.data.source import load_articles
from bertvision.data.squad import records
from bertvision.data.windows import make_windows
from bertvision.heads import Head, build_head
from bertvision.serve.config import Ensemble, ReaderConfig, TaskConfig
from bertvision.serve.engine import TorchEngine
from bertvision.serve.export import export
from bertvision.serve.reader import BATCH_TOKENS, Reader
from bertvision.serve.spans import as_records

LENGTH, OVERLAP, NBEST, ANSWER = 384, 128, 20, 30
HEADS = {
    "last": {"kind": "last"},
    "pool": {"kind": "pool"},
    "compress": {"kind": "compress", "size": 64},
    "attend": {"kind": "attend", "form": "dot"},
    "cacnn": {"kind": "cacnn"},
}
Pair = tuple[str, str]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="16 questions, 3 rounds")
    parser.add_argument("--json", action="store_true", help="print JSON and nothing else")
    parser.add_argument("--backbone", default="marco")
    parser.add_argument("--data", default="sample:test", help="where the questions come from")
    parser.add_argument("--questions", type=int, default=64)
    given = parser.parse_args()
    rounds, count = (3, 16) if given.quick else (5, given.questions)
    pairs = [(one.question, one.context) for one in records(load_articles(given.data))[:count]]
    backbone = Backbone.load(given.backbone)
    torch.manual_seed(0)
    shape: dict[str, Any] = {"layers": backbone.layers, "width": backbone.width, "task": "spans"}
    heads = {name: build_head(spec, **shape).eval() for name, spec in HEADS.items()}
    found = {
        "questions": count,
        "tokens": sum(reader_of(backbone, heads, ["last"]).tokens(pairs)),
        "threads": torch.get_num_threads(),
        **against_plain_loop(backbone, heads, pairs, rounds),
        **against_bare_backbone(backbone, heads, pairs, rounds),
        **against_onnx(backbone, heads, pairs, rounds),
    }
    if given.json:
        print(json.dumps(found))
        return
    for key, value in found.items():
        print(f"{key:44} {value:,.2f}" if isinstance(value, float) else f"{key:44} {value}")


def in_turns(jobs: dict[str, Callable[[], Any]], rounds: int) -> dict[str, float]:
    """Median seconds of each job, run one after the other, round after round, after one round that does not count."""
    seconds: dict[str, list[float]] = {name: [] for name in jobs}
    for number in range(rounds + 1):
        for name, job in jobs.items():
            begin = time.perf_counter()
            job()
            if number:
                seconds[name].append(time.perf_counter() - begin)
    return {name: statistics.median(taken) for name, taken in seconds.items()}


def reader_of(backbone: Backbone, heads: dict[str, Head], members: Sequence[str]) -> Reader:
    tasks = {"spans": TaskConfig("spans", tuple(members), Ensemble.of(list(members)))}
    engine = TorchEngine(backbone, {"spans": {name: heads[name] for name in members}}, tasks)
    return Reader(ReaderConfig(backbone.name, backbone.fingerprint, {}, tasks), engine, about={})


def against_plain_loop(
    backbone: Backbone, heads: dict[str, Head], pairs: Sequence[Pair], rounds: int
) -> dict[str, float]:
    reader, loop = reader_of(backbone, heads, ["last"]), PlainLoop(backbone, heads["last"])
    taken = in_turns({"loop": lambda: loop.answers(pairs), "reader": lambda: reader.answers(pairs)}, rounds)
    return {
        "plain loop, questions per second": len(pairs) / taken["loop"],
        "reader, questions per second": len(pairs) / taken["reader"],
        "reader : plain loop (at least 2)": taken["loop"] / taken["reader"],
    }


class PlainLoop:
    """What one writes with transformers alone: a question at a time, windows padded to full length, spans in Python."""

    def __init__(self, backbone: Backbone, head: Head) -> None:
        place = find_encoder(backbone.name)
        self.tokenizer, self.model = AutoTokenizer.from_pretrained(place), AutoModel.from_pretrained(place).eval()
        (self.weight, self.bias) = (dict(head.named_parameters())[name].detach() for name in _linear(head))

    @torch.inference_mode()
    def answers(self, pairs: Sequence[Pair]) -> list[str]:
        return [self.answer(question, context) for question, context in pairs]

    def answer(self, question: str, context: str) -> str:
        features = self.tokenizer(
            question,
            context,
            truncation="only_second",
            max_length=LENGTH,
            stride=OVERLAP,
            padding="max_length",
            return_overflowing_tokens=True,
            return_offsets_mapping=True,
            return_tensors="pt",
        )
        features.pop("overflow_to_sample_mapping")
        offsets = features.pop("offset_mapping").tolist()
        states = self.model(**features).last_hidden_state  # (W, 384, H)
        starts, ends = torch.nn.functional.linear(states, self.weight, self.bias).unbind(-1)  # (W, 384) each
        best, answer = -float("inf"), ""
        for window, places in enumerate(offsets):
            inside = [sequence == 1 for sequence in features.sequence_ids(window)]
            start, end = starts[window].numpy(), ends[window].numpy()
            for first in start.argsort()[-NBEST:]:
                for last in end.argsort()[-NBEST:]:
                    fits = inside[first] and inside[last] and first <= last < first + ANSWER
                    if fits and start[first] + end[last] > best:
                        best, answer = start[first] + end[last], context[places[first][0] : places[last][1]]
        return answer


def _linear(head: Head) -> list[str]:
    """The names of the only weight and the only bias of a head."""
    names = [name for name, _ in head.named_parameters()]
    return [next(name for name in names if name.endswith(end)) for end in ("weight", "bias")]


def against_bare_backbone(
    backbone: Backbone, heads: dict[str, Head], pairs: Sequence[Pair], rounds: int
) -> dict[str, float]:
    """What each head adds to the pass of the bare backbone, in percent. The bare one delivers its last layer."""
    windows = make_windows(backbone.tokenizer, as_records(pairs), LENGTH, OVERLAP)
    batches = [collate(windows, index, backbone.pad) for index in by_length(windows.lengths, BATCH_TOKENS)]

    @torch.inference_mode()
    def bare() -> None:
        for batch in batches:
            backbone(batch, "last")

    def with_head(name: str) -> Callable[[], None]:
        engine = reader_of(backbone, heads, [name]).engine
        return lambda: [engine.logits(batch, ["spans"]) for batch in batches] and None

    taken = in_turns({"bare": bare, **{name: with_head(name) for name in heads}}, rounds)
    return {
        f"{name} adds to the bare backbone, % (at most 8)": 100 * (taken[name] / taken["bare"] - 1) for name in heads
    }


def against_onnx(backbone: Backbone, heads: dict[str, Head], pairs: Sequence[Pair], rounds: int) -> dict[str, Any]:
    reader = reader_of(backbone, heads, ["pool"])
    with tempfile.TemporaryDirectory() as scratch:
        sizes, readers = {}, {"torch fp32": reader}
        for name, int8 in (("onnx fp32", False), ("onnx int8", True)):
            sizes[name] = export(reader, Path(scratch) / name, int8=int8).stat().st_size / 1e6
            readers[name] = Reader.from_pretrained(Path(scratch) / name, engine="onnx")
        taken = in_turns({name: (lambda one=one: one.answers(pairs)) for name, one in readers.items()}, rounds)
        answers = {name: [found[0]["answer"] for found in one.answers(pairs)] for name, one in readers.items()}
    found: dict[str, Any] = {}
    for name, seconds in taken.items():
        found[f"{name}, questions per second"] = len(pairs) / seconds
        if name in sizes:
            equal = sum(a == b for a, b in zip(answers[name], answers["torch fp32"]))
            found |= {f"{name} : torch fp32": taken["torch fp32"] / seconds, f"{name}, MB": sizes[name]}
            found[f"{name}, answers as torch"] = f"{equal} of {len(pairs)}"
    return found


if __name__ == "__main__":
    main()
