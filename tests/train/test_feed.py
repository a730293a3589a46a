"""Live or stored: what the recipe says, or the forecast; the same heads either way, and the same after a kill."""

import json
import shutil
from pathlib import Path

import pytest
import torch

from bertvision.backbone.backbone import Backbone
from bertvision.backbone.states import States
from bertvision.errors import UserError
from bertvision.files import NoRoom
from bertvision.heads import HEADS, Head, register
from bertvision.states import forecast as forecasts
from bertvision.states import write
from bertvision.states.layout import Selection
from bertvision.states.store import Store
from bertvision.states.write import write_store
from bertvision.tasks import TASKS
from bertvision.train.bank import HeadBank, bank_feeds, train_bank
from bertvision.train.feed import Feeds
from bertvision.train.learner import Learner
from runs import encoder, recipe_of
from states.stores import contents
from tunings import bank_trained, job_of, killed_at, loaded, notes

BACKBONE, TASK, DATA = loaded()
ENTRIES = [{"kind": "pool"}, {"kind": "conv", "dropout": 0.3}]


def train(directory: Path, snapshot_seconds: float = 1e9, **options: object) -> dict[str, torch.Tensor]:
    return bank_trained(directory, ENTRIES, snapshot_seconds=snapshot_seconds, **{"epochs": 3, **options}).state_dict()


def said(directory: Path) -> str:
    """What was noted about states."""
    return next(text for text in reversed(notes(directory)) if text.startswith("states: "))


def difference(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> float:
    return max((one[key] - other[key]).abs().max().item() for key in one)


@pytest.mark.device
def test_stored_heads_are_the_live_ones(tmp_path):
    losses = []
    for states in ("live", "stored"):
        train(tmp_path / states, states=states, dtype="fp32", patience=9)
        assert said(tmp_path / states) == f"states: {states}, as the recipe says"
        best = HeadBank.load(tmp_path / states / "heads.safetensors")[1]["best"]
        losses.append([one["loss"] for one in best.values()])
    assert len(losses[0]) == 2 and losses[0] == pytest.approx(losses[1], abs=1e-5)
    log = (tmp_path / "stored" / "log.jsonl").read_text()
    assert "storing states of train" in log and "storing states of tune" in log


@pytest.mark.parametrize("choice", ["live", "stored"])
def test_auto_does_what_the_forecast_says(choice, tmp_path, monkeypatch):
    monkeypatch.setattr(forecasts.Forecast, "choose", lambda self: (choice, "that is quicker"))
    chosen = train(tmp_path / "auto", states="auto", dtype="int8")
    assert said(tmp_path / "auto") == f"states: {choice}, for that is quicker"
    assert difference(chosen, train(tmp_path / "asked", states=choice, dtype="int8")) == 0


def test_auto_measures_for_itself_unless_states_are_read_once(tmp_path, monkeypatch):
    train(tmp_path / "measured", states="auto")
    assert said(tmp_path / "measured").split(",")[0] in ("states: live", "states: stored")
    assert "live takes" in said(tmp_path / "measured") and "stored" in said(tmp_path / "measured")
    monkeypatch.setattr(forecasts.Forecast, "choose", lambda self: ("live", f"tune is read {self.looks} times"))
    train(tmp_path / "checked", epochs=1, states="auto", patience=5, checks=4)
    assert said(tmp_path / "checked") == "states: live, for tune is read 4 times"
    monkeypatch.setattr(forecasts, "forecast", None)
    for name, options in (("once", {}), ("one look", {"patience": 5, "checks": 1})):
        train(tmp_path / name, epochs=1, states="auto", **options)
        assert said(tmp_path / name) == "states: live, every state is read only once"


@pytest.mark.parametrize(("choice", "moment"), [("live", 4), ("stored", "storing"), ("stored", 4)])
def test_a_choice_is_kept_over_a_kill(choice, moment, tmp_path, monkeypatch):
    whole = train(tmp_path / "whole", states=choice)
    with monkeypatch.context() as patched:
        patched.setattr(forecasts.Forecast, "choose", lambda self: (choice, "that is quicker"))
        with killed_at(moment):
            train(tmp_path / "killed", 0, states="auto")
    assert (job_of(tmp_path / "killed").states / "choice.json").is_file()
    other = "live" if choice == "stored" else "stored"
    monkeypatch.setattr(forecasts.Forecast, "choose", lambda self: (other, "now it would be"))
    assert difference(train(tmp_path / "killed", 0, states="auto"), whole) == 0
    assert said(tmp_path / "killed") == f"states: {choice}, as it began"


@pytest.mark.parametrize("states", ["live", "stored"])
def test_heads_on_cls_learn_in_batches_of_the_size_asked_for(states, tmp_path, monkeypatch):
    recipe = recipe_of(task="labels", bank={"states": states, "batch_size": 16, "batch_tokens": 64})
    task, sizes, learn = TASKS["labels"](), [], Learner.learn

    def watched(self, states, batch, *rest):
        sizes.append((len(batch.index), states.layers.shape[2]))
        learn(self, states, batch, *rest)

    monkeypatch.setattr(Learner, "learn", watched)
    data = task.load(recipe.data, BACKBONE.tokenizer, seed=0)
    shape = {"layers": BACKBONE.layers, "width": BACKBONE.width, "task": "labels", "outputs": task.outputs}
    bank, job = HeadBank([{"kind": "pool"}], **shape, seed=1), job_of(tmp_path)
    train_bank(bank, bank_feeds(bank, BACKBONE, recipe.bank, job), task, data, job)
    assert sizes == [(16, 1)] * 3


def test_heads_on_cls_get_a_store_of_cls_alone(tmp_path, monkeypatch):
    recipe = recipe_of(task="labels", bank={"states": "stored", "dtype": "fp32", "epochs": 2})
    task = TASKS["labels"]()
    data = task.load(recipe.data, BACKBONE.tokenizer, seed=0)
    sizes, states = [], Store.states

    def watched(self, *args):
        found = states(self, *args)
        sizes.append((self.bytes, found.layers.shape[2]))
        return found

    monkeypatch.setattr(Store, "states", watched)
    shape = {"layers": BACKBONE.layers, "width": BACKBONE.width, "task": "labels", "outputs": task.outputs}
    for entries in ([{"kind": "pool"}], [{"kind": "pool"}, {"kind": "compress", "tokens": "all"}]):
        bank, job = HeadBank(entries, **shape, seed=1), job_of(tmp_path, str(len(entries)))
        train_bank(bank, bank_feeds(bank, BACKBONE, recipe.bank, job), task, data, job)
    (small, tokens), (large, more) = sizes[0], sizes[-1]
    assert tokens == 1 < more and small < large / 10
    one, both = (HeadBank.load(tmp_path / f"{count}.safetensors")[0] for count in (1, 2))
    for key, value in one["pool"].state_dict().items():
        torch.testing.assert_close(both["pool"].state_dict()[key], value, rtol=0, atol=1e-4)


class Middle(Head):
    """Reads layer 1 of 4."""

    reads = (1,)

    def __init__(self, layers: int, width: int, outputs: int) -> None:
        super().__init__()
        self.readout = torch.nn.Linear(width, outputs)

    def forward(self, states: States) -> torch.Tensor:
        return self.readout(states.layer(1))


@pytest.mark.parametrize("beside", ["middle", "last", "pool"])
def test_a_head_of_chosen_layers_has_them_from_anywhere(beside, tmp_path, monkeypatch):
    monkeypatch.setattr(HEADS, "added", dict(HEADS.added))
    register("middle")(Middle)
    monkeypatch.setitem(globals(), "ENTRIES", [{"kind": "middle"}, {"kind": beside}])
    seen, forward = [], Middle.forward
    monkeypatch.setattr(Middle, "forward", lambda self, states: seen.append(states.numbers) or forward(self, states))
    options = {"patience": 9, "dtype": "fp32"}
    alive = train(tmp_path / "live", states="live", **options)
    stored = train(tmp_path / "stored", states="stored", **options)
    tapped = tap(tmp_path / "states", "train", "tune", dtype="fp32", reads="all" if beside == "pool" else (0, 1, 3))
    read = train(tmp_path / "tapped", states="stored", tapped=tapped, **options)
    assert set(seen) == {(1,)}  # whatever its neighbour reads
    assert difference(stored, read) == 0
    # a bias moves all tokens alike: it has no gradient but what rounding gives it
    weights = [{key: value for key, value in one.items() if "bias" not in key} for one in (alive, stored)]
    assert difference(*weights) < 1e-4
    assert "states of train: read from untuned-train" in notes(tmp_path / "tapped")


def feeds_of(directory: Path, **options: object) -> Feeds:
    return Feeds(BACKBONE, recipe_of(bank={"epochs": 3, **options}).bank, Selection(), job_of(directory))


def test_a_choice_for_something_else_is_not_kept_and_a_damaged_one_is_one_line(tmp_path):
    note = job_of(tmp_path).states / "choice.json"
    note.parent.mkdir()
    for content in ("{", "[1]", '{"identity": "this"}', '{"identity": "this", "states": 1}'):
        note.write_text(content)
        with pytest.raises(UserError, match=r"choice\.json: damaged, .* delete it"):
            feeds_of(tmp_path).choose(DATA["train"].windows, [])
    note.write_text('{"identity": "that", "states": "stored"}')
    feeds_of(tmp_path).choose(DATA["train"].windows, [])
    assert json.loads(note.read_text())["identity"] == "this"


def tap(place: Path, *sets: str, **options: object) -> Path:
    """A directory of stores, as `bertvision tap` leaves it."""
    for name in sets:
        write_store(place / f"untuned-{name}", BACKBONE, DATA[name].windows, Selection(**options))
    return place


@pytest.mark.parametrize("states", ["stored", "auto"])
def test_a_tapped_store_is_read_and_stays(states, tmp_path, monkeypatch):
    plain = train(tmp_path / "plain", states="stored", patience=9)
    tapped = tap(tmp_path / "states", "train", "tune", "test")
    before = contents(tapped / "untuned-train")
    monkeypatch.setattr(write, "write_store", None)
    monkeypatch.setattr(forecasts, "forecast", None)
    assert difference(train(tmp_path / "tapped", tapped=tapped, states=states, patience=9), plain) == 0
    assert "states of train: read from untuned-train" in notes(tmp_path / "tapped")
    assert "states of tune: read from untuned-tune" in notes(tmp_path / "tapped")
    assert contents(tapped / "untuned-train") == before
    train(tmp_path / "live", tapped=tapped, states="live")
    assert notes(tmp_path / "live") == ["states: live, as the recipe says"]


def test_a_tapped_store_that_does_not_fit_is_passed_over(tmp_path):
    plain = train(tmp_path / "plain", states="stored")
    tapped = tap(tmp_path / "states", "tune")
    for name, options in (("int8", {"dtype": "int8"}), ("cls", {"positions": "cls"}), ("last", {"reads": "last"})):
        write_store(tapped / name, BACKBONE, DATA["train"].windows, Selection(**options))
    (shard,) = tap(tmp_path / "whole", "train").glob("*/shard-*")
    damaged = Path(shutil.copytree(tmp_path / "whole" / "untuned-train", tapped / "damaged")) / shard.name
    damaged.write_bytes(bytes([shard.read_bytes()[0] ^ 1]) + shard.read_bytes()[1:])
    other = Backbone.load(encoder())
    other.model.embeddings.word_embeddings.weight.data += 1
    write_store(tapped / "other", other, DATA["train"].windows)
    assert difference(train(tmp_path / "over", tapped=tapped, states="stored"), plain) == 0
    note = next(text for text in notes(tmp_path / "over") if text.startswith("states of train: no store fits; "))
    for why in (
        "cls: holds fp16 states of all layers and cls positions",
        "damaged (the states of window 0 are not those that were written)",
        "int8: holds int8 states",
        "last: holds fp16 states of last layers",
        "other: was written by an encoder with other weights",
        "untuned-tune: holds the states of other data",
    ):
        assert why in note
    assert str(tmp_path) not in note


@pytest.mark.parametrize("killed", [False, True])
def test_a_disk_without_room_makes_auto_live(killed, tmp_path, monkeypatch):
    whole = write.write_store

    def refuses(directory, *args, **options):
        if directory.name == "train":
            (directory / "half").mkdir(parents=True)
            raise NoRoom(f"{directory}: the disk is too full: 9.0 GB are still to be written and 1 bytes are free")
        return whole(directory, *args, **options)

    monkeypatch.setattr(forecasts.Forecast, "choose", lambda self: ("stored", "that is quicker"))
    monkeypatch.setattr(write, "write_store", refuses)
    options = {"states": "auto", "dtype": "fp32", "patience": 9}
    if killed:
        with killed_at(4):
            train(tmp_path / "auto", 0, **options)
        place = job_of(tmp_path / "auto").states
        assert sorted(one.name for one in place.iterdir()) == ["choice.json", "tune"]
    trained = train(tmp_path / "auto", 0, **options)
    assert any(text.startswith("states of train: live after all; ") for text in notes(tmp_path / "auto"))
    assert difference(trained, train(tmp_path / "live", **options | {"states": "live"})) < 1e-5
    with pytest.raises(NoRoom):
        train(tmp_path / "asked", **options | {"states": "stored"})


def test_a_store_is_made_once_and_charged_once(tmp_path):
    feeds = feeds_of(tmp_path, states="stored")
    feeds.choose(DATA["train"].windows, [])
    first, again = (feeds.feed(DATA["train"].windows, "train") for _ in range(2))
    assert first.source is again.source and first.seconds > 10 * again.seconds
