"""Early exit: off, nothing changes; on, a window leaves by its own logits alone, wherever it is asked."""

from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from bertvision.errors import UserError
from bertvision.serve.build import Wanted, build_reader
from bertvision.serve.config import ExitRule
from bertvision.serve.exits import LOSSES, ExitEngine
from bertvision.serve.export import export
from bertvision.serve.reader import Reader
from bertvision.train.study import Study
from checks import error_of, shown
from runs import recipe_of

HEADS = [{"kind": "compress", "size": 8, "depth": 1}, {"kind": "last", "depth": 2}, {"kind": "pool"}]
NAMES = ["compress size=8 depth=1", "last depth=2"]
ASKED = [
    ("who was the king?", "the king was called old name, born in the north city."),
    ("when?", "the year was great"),
    ("where did people war?", "in the south of the river and the old city " * 9),
    ("what is new?", "the world is new and the people are old"),
]


@pytest.fixture(scope="module")
def places(tmp_path_factory) -> dict[str, Path]:
    """Readers of one head, plain and with exits."""
    place = tmp_path_factory.mktemp("exits")
    Study(recipe_of(heads=HEADS, finetune={"checkpoints": []}), place / "run", quiet=True).run()
    plain = build_reader(place / "run", place / "plain", Wanted(members=["pool"]))
    wanted = Wanted(members=["pool"], exits=list(reversed(NAMES)))
    return {"run": place / "run", "plain": plain, "exits": build_reader(place / "run", place / "exits", wanted)}


def by(reader: Reader, sure: float, agree: float = 1.0) -> Reader:
    """Leaving where the probability is `sure`."""
    engine = ExitEngine(reader.torch_engine("exit"), "spans", ExitRule(0.5, sure, agree, 0.0, 0.0))
    return Reader(reader.config, engine, about=reader.about)


def test_without_exit_the_answers_are_those_of_the_plain_reader(places):
    plain, reader = (Reader.from_pretrained(places[name]) for name in ("plain", "exits"))
    assert reader.answers(ASKED) == plain.answers(ASKED)
    nobody = by(reader, 2.0)
    assert nobody.answers(ASKED) == plain.answers(ASKED)
    assert set(nobody.engine.left) <= {1, 2, 3} and nobody.engine.left[1] == nobody.engine.left[2] == 0


def test_rules_are_chosen_on_tune_and_kept(places):
    reader = Reader.from_pretrained(places["exits"])
    exits = reader.config.tasks["spans"].exits
    assert [(one.head, one.depth) for one in exits.heads] == [(NAMES[0], 1), (NAMES[1], 2)]
    assert {one.loss for one in exits.rules} <= set(LOSSES)
    assert all(exits.score - one.score <= one.loss and 1 <= one.blocks <= 3 for one in exits.rules)
    assert "## Early exit" in reader.card
    assert Reader.from_pretrained(places["exits"], exit=5).engine.rule == min(exits.rules, key=lambda one: one.blocks)


def test_everybody_may_leave_at_once(places):
    reader = by(Reader.from_pretrained(places["exits"]), 0.0)
    reader.answers(ASKED)
    assert list(reader.engine.left) == [1]


@pytest.mark.parametrize("agree", [1.0, 0.5])
def test_a_window_leaves_by_itself(places, agree):
    reader = Reader.from_pretrained(places["exits"])
    middle = by(reader, 0.02, agree)  # of random heads
    together = middle.answers(ASKED)
    left = Counter(middle.engine.left)
    assert len(left) > 1, left  # some leave, some stay
    alone = by(reader, 0.02, agree)
    for one, wanted in zip(ASKED, together):
        (found,) = alone.answers([one])
        assert found[0]["answer"] == wanted[0]["answer"]
        assert found[0]["score"] == pytest.approx(wanted[0]["score"], abs=1e-5)
    assert alone.engine.left == left


def test_what_cannot_leave_early_says_so(places, tmp_path):
    with pytest.raises(UserError, match="exit: this reader has no read-outs below its last"):
        Reader.from_pretrained(places["plain"], exit=0.5)
    reader = Reader.from_pretrained(places["exits"])
    none = replace(reader.config.tasks["spans"].exits, rules=(ExitRule(0.5, 0.9, 1.0, 50.0, 2.0),))
    reader.config = replace(reader.config, tasks={"spans": replace(reader.config.tasks["spans"], exits=none)})
    with pytest.raises(UserError, match=r"exit: 0\.1 is less than any rule loses on the tune set; give 0\.5 or more"):
        reader.leaving(0.1)
    none = replace(none, rules=())
    reader.config = replace(reader.config, tasks={"spans": replace(reader.config.tasks["spans"], exits=none)})
    with pytest.raises(UserError, match="every rule lost too much"):
        reader.leaving(2.0)
    graph = export(Reader.from_pretrained(places["exits"]), tmp_path / "onnx")
    with pytest.raises(UserError, match="exit: an exported reader cannot"):
        Reader.from_pretrained(graph.parent, exit=0.5)
    with pytest.raises(UserError, match=r"--exits pool: .* not below|--exits: pool is not below"):
        build_reader(places["run"], tmp_path / "not", Wanted(members=["last depth=2"], exits=["pool"]))


def test_on_the_command_line(places):
    ask = ["ask", ASKED[0][0], "--context", ASKED[0][1], "--exit", "9", "--reader"]
    assert error_of(shown, *ask, places["plain"])
    shown(*ask, places["exits"])
