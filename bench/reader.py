"""Questions per second: a reader against a plain transformers loop, heads against the backbone, torch against ONNX.

python bench/reader.py [--quick] [--json] [--backbone marco] [--questions 64]
python bench/reader.py --reader pocket    # one reader in each engine against plain loops: transformers, and ONNX int8
python bench/reader.py --heads            # what heads add to the bare backbone alone, in processor time, 15 rounds

All that is compared runs in turns on the same questions with the same weights; a ratio is the median of the rounds'.
"""

import argparse
import json
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModel, AutoTokenizer

from bertvision.backbone.backbone import Backbone
from bertvision.backbone.cpu_kernels import frozen
from bertvision.backbone.loading import find_encoder
from bertvision.data.batches import by_length, collate
from bertvision.data.sources import load_articles
from bertvision.data.squad import records
from bertvision.data.windows import make_windows
from bertvision.evaluate.ensemble import Ensemble, Member
from bertvision.heads import Head, build_head
from bertvision.serve.answers import as_records
from bertvision.serve.config import ReaderConfig, TaskConfig
from bertvision.serve.engines import TorchEngine
from bertvision.serve.export import export
from bertvision.serve.onnx_engine import session_of
from bertvision.serve.reader import BATCH_TOKENS, Reader
from side_by_side import Race

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
    parser.add_argument("--reader", default="", help="measure this reader and nothing else")
    parser.add_argument("--heads", action="store_true", help="measure what heads add, in processor time, and no more")
    parser.add_argument("--data", default="sample:test", help="where the questions come from")
    parser.add_argument("--questions", type=int, default=64)
    given = parser.parse_args()
    rounds, count = (3, 16) if given.quick else (5, given.questions)
    pairs = [(one.question, one.context) for one in records(load_articles(given.data))[:count]]
    found = {"questions": count, "threads": torch.get_num_threads()}
    if given.heads:
        backbone = Backbone.load(given.backbone)
        found |= against_bare_backbone(backbone, heads_of(backbone), pairs, 3 * rounds, time.process_time)
    else:
        found |= one_reader(given.reader, pairs, rounds) if given.reader else parts(given.backbone, pairs, rounds)
    if given.json:
        print(json.dumps(found))
        return
    for key, value in found.items():
        print(f"{key:44} {value:,.2f}" if isinstance(value, float) else f"{key:44} {value}")


def one_reader(name: str, pairs: Sequence[Pair], rounds: int) -> dict[str, float]:
    """A reader in each engine against plain loops: its encoder in transformers, its int8 graph in ONNX Runtime alone.

    The loop in transformers has a linear map in place of the reader's heads, which takes as long.
    """
    reader = Reader.from_pretrained(name, engine="torch")
    backbone = reader.torch_engine("this bench").backbone
    linear = build_head({"kind": "last"}, layers=backbone.layers, width=backbone.width, task="spans")
    with tempfile.TemporaryDirectory() as scratch:
        graphs = {f"onnx {how}": export(reader, Path(scratch) / how, int8=how == "int8") for how in ("fp32", "int8")}
        loop = PlainLoop(reader.config.backbone, linear, backbone.longest)
        ways: dict[str, Any] = {"plain loop": loop, "plain loop on onnx int8": OnnxLoop(loop, graphs["onnx int8"])}
        ways |= {"reader, torch": reader}
        ways |= {f"reader, {how}": Reader.from_pretrained(path.parent) for how, path in graphs.items()}
        race = warm_race(*((lambda way=way: way.answers(pairs)) for way in ways.values()), rounds=rounds)
    found: dict[str, float] = {"tokens": sum(reader.tokens(pairs))}
    for number, way in enumerate(ways):
        found[f"{way}, questions per second"] = len(pairs) / race.seconds(number)
        found |= {f"{way} : plain loop": 1 / race.ratio(number)} if number else {}
    return found


def parts(name: str, pairs: Sequence[Pair], rounds: int) -> dict[str, Any]:
    """What each part of a reader costs, with heads that know nothing: they take as long as those that do."""
    backbone = Backbone.load(name)
    heads = heads_of(backbone)
    reader = reader_of(backbone, heads, ["last"])
    return {
        "tokens": sum(reader.tokens(pairs)),
        **against_plain_loop(reader, PlainLoop(name, heads["last"], backbone.longest), pairs, rounds),
        **against_bare_backbone(backbone, heads, pairs, rounds),
        **against_onnx(backbone, heads, pairs, rounds),
    }


def heads_of(backbone: Backbone) -> dict[str, Head]:
    torch.manual_seed(0)
    shape: dict[str, Any] = {"layers": backbone.layers, "width": backbone.width, "task": "spans"}
    return {name: build_head(spec, **shape).eval() for name, spec in HEADS.items()}


def warm_race(*ways: Callable[[], object], rounds: int, clock: Callable[[], float] = time.perf_counter) -> Race:
    """A race after one round that does not count."""
    for way in ways:
        way()
    return Race(*ways, rounds=rounds, clock=clock)


def reader_of(backbone: Backbone, heads: dict[str, Head], members: Sequence[str]) -> Reader:
    tasks = {"spans": TaskConfig("spans", Ensemble(tuple(Member(name, 0, 0.0) for name in members)))}
    engine = TorchEngine(backbone, {"spans": {name: heads[name] for name in members}}, tasks)
    return Reader(ReaderConfig(backbone.name, backbone.fingerprint, {}, tasks), engine, about={})


def against_plain_loop(reader: Reader, loop: "PlainLoop", pairs: Sequence[Pair], rounds: int) -> dict[str, float]:
    race = warm_race(lambda: reader.answers(pairs), lambda: loop.answers(pairs), rounds=rounds)
    return {
        "plain loop, questions per second": len(pairs) / race.seconds(1),
        "reader, questions per second": len(pairs) / race.seconds(0),
        "reader : plain loop (at least 2)": race.ratio(),
    }


class PlainLoop:
    """What one writes with transformers alone: a question at a time, windows padded to full length, spans in Python."""

    def __init__(self, encoder: str, head: Head, longest: int) -> None:
        place, self.length = find_encoder(encoder), min(LENGTH, longest)
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
            max_length=self.length,
            stride=min(OVERLAP, self.length // 3),
            padding="max_length",
            return_overflowing_tokens=True,
            return_offsets_mapping=True,
            return_tensors="pt",
        )
        features.pop("overflow_to_sample_mapping")
        offsets = features.pop("offset_mapping").tolist()
        starts, ends = self.logits(features).unbind(-1)  # (W, 384) each
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

    def logits(self, features: Any) -> torch.Tensor:
        states = self.model(**features).last_hidden_state  # (W, 384, H)
        return torch.nn.functional.linear(states, self.weight, self.bias)


class OnnxLoop(PlainLoop):
    """The same loop on an exported graph of a reader with spans."""

    def __init__(self, loop: PlainLoop, graph: Path) -> None:
        self.tokenizer, self.length, self.session = loop.tokenizer, loop.length, session_of(graph)
        self.inputs = [given.name for given in self.session.get_inputs()]

    def logits(self, features: Any) -> torch.Tensor:
        given = {"ids": features["input_ids"], "types": features.get("token_type_ids")}
        given |= {"mask": features["attention_mask"].bool()}
        (found,) = self.session.run(["spans"], {name: given[name].numpy() for name in self.inputs})
        return torch.from_numpy(found)


def _linear(head: Head) -> list[str]:
    """The names of the only weight and the only bias of a head."""
    names = [name for name, _ in head.named_parameters()]
    return [next(name for name in names if name.endswith(end)) for end in ("weight", "bias")]


def against_bare_backbone(
    backbone: Backbone,
    heads: dict[str, Head],
    pairs: Sequence[Pair],
    rounds: int,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, float]:
    """What each head adds to the pass of the bare backbone, in percent. The bare one delivers its last layer, by
    the same packed kernels."""
    windows = make_windows(backbone.tokenizer, as_records(pairs), LENGTH, OVERLAP)
    batches = [collate(windows, index, backbone.pad) for index in by_length(windows.lengths, BATCH_TOKENS)]

    states = frozen(backbone)

    def bare() -> None:
        for batch in batches:
            states(batch, "last")

    def with_head(name: str) -> Callable[[], None]:
        engine = reader_of(backbone, heads, [name]).engine
        return lambda: [engine.logits(batch, ["spans"]) for batch in batches] and None

    race = warm_race(bare, *map(with_head, heads), rounds=rounds, clock=clock)
    return {
        f"{name} adds to the bare backbone, % (at most 8)": 100 * (race.ratio(number) - 1)
        for number, name in enumerate(heads, start=1)
    }


def against_onnx(backbone: Backbone, heads: dict[str, Head], pairs: Sequence[Pair], rounds: int) -> dict[str, Any]:
    reader = reader_of(backbone, heads, ["pool"])
    with tempfile.TemporaryDirectory() as scratch:
        sizes, readers = {}, {"torch fp32": reader}
        for name, int8 in (("onnx fp32", False), ("onnx int8", True)):
            sizes[name] = export(reader, Path(scratch) / name, int8=int8).stat().st_size / 1e6
            readers[name] = Reader.from_pretrained(Path(scratch) / name, engine="onnx")
        race = warm_race(*((lambda one=one: one.answers(pairs)) for one in readers.values()), rounds=rounds)
        answers = {name: [found[0]["answer"] for found in one.answers(pairs)] for name, one in readers.items()}
    found: dict[str, Any] = {}
    for number, name in enumerate(readers):
        found[f"{name}, questions per second"] = len(pairs) / race.seconds(number)
        if name in sizes:
            equal = sum(a == b for a, b in zip(answers[name], answers["torch fp32"]))
            found |= {f"{name} : torch fp32": 1 / race.ratio(number), f"{name}, MB": sizes[name]}
            found[f"{name}, answers as torch"] = f"{equal} of {len(pairs)}"
    return found


if __name__ == "__main__":
    main()
