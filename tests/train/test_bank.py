"""The bank: heads trained together are, to the last bit, the heads trained alone."""

import weakref

import numpy as np
import pytest
import torch
from torch.nn.utils import parameters_to_vector

from bertvision import devices
from bertvision.backbone.states import States
from bertvision.data.batches import collate, nested_fraction
from bertvision.errors import UserError
from bertvision.files import save_tensors
from bertvision.heads import HEADS
from bertvision.states.store import live
from bertvision.train.bank import HeadBank, at_fractions, unique_names
from bertvision.train.loop import Feed
from bertvision.train.run_dir import file_name
from tunings import bank_trained, loaded

BACKBONE, TASK, DATA = loaded()
SHAPE = {"layers": BACKBONE.layers, "width": BACKBONE.width, "task": "spans", "outputs": 2}
KINDS = [{"kind": kind} for kind in sorted(HEADS)]
FORMS = [
    {"kind": "pool", "weights": "mean"},
    {"kind": "compress", "size": 4, "shared": False, "skip": True},
    {"kind": "conv", "form": "inception", "dropout": 0.3},
    {"kind": "attend", "form": "encoder"},
]


def same(one: torch.nn.Module, other: torch.nn.Module) -> bool:
    a, b = one.state_dict(), other.state_dict()
    return a.keys() == b.keys() and all(torch.equal(a[key].cpu(), b[key].cpu()) for key in a)


@pytest.fixture(scope="module")
def all_kinds(tmp_path_factory) -> HeadBank:
    return bank_trained(tmp_path_factory.mktemp("all"), [*KINDS, *FORMS])


@pytest.mark.device
def test_all_kinds_learn_in_one_bank(all_kinds):
    fresh = HeadBank([*KINDS, *FORMS], **SHAPE, seed=1)
    assert all_kinds.names == fresh.names and len(all_kinds) == len(KINDS) + len(FORMS)
    other = HeadBank([*KINDS, *FORMS], **SHAPE, seed=2)
    for name, head in all_kinds.items():
        assert not same(head, fresh[name]) and not same(fresh[name], other[name]), name
        assert not head.training


@pytest.mark.parametrize("entry", [*KINDS, *FORMS], ids=lambda entry: "-".join(map(str, entry.values())))
def test_a_head_does_not_notice_the_others(entry, all_kinds, tmp_path):
    alone = bank_trained(tmp_path, [entry])
    assert same(alone[alone.names[0]], all_kinds[alone.names[0]])


def test_bf16(all_kinds, tmp_path, monkeypatch):
    """Every kind learns in bf16 products; weights stay fp32 and end near those of fp32."""
    if devices.has_bf16():
        bank = bank_trained(tmp_path, [*KINDS, *FORMS], precision="bf16")
        fresh = HeadBank([*KINDS, *FORMS], **SHAPE, seed=1)
        assert all(value.dtype != torch.bfloat16 for value in bank.state_dict().values())
        for name, head in bank.items():
            three = fresh[name], all_kinds[name], head
            begun, exact, near = (parameters_to_vector(each.parameters()) for each in three)
            assert not torch.equal(near, exact), name
            assert (near - exact).norm() < 0.5 * (exact - begun).norm(), name
    monkeypatch.setattr(devices, "has_bf16", lambda device: False)
    with pytest.raises(UserError, match=r"bank\.precision: this processor has no instructions for bf16"):
        bank_trained(tmp_path / "refused", KINDS[:1], precision="bf16")


def test_the_order_in_the_bank_does_not_matter(all_kinds, tmp_path):
    turned = bank_trained(tmp_path, [*FORMS, *KINDS][::-1])
    assert all(same(head, all_kinds[name]) for name, head in turned.items())


def test_a_head_that_breaks_is_dropped_and_the_others_are_as_without_it(tmp_path):
    good = [{"kind": "pool"}, {"kind": "conv", "dropout": 0.3}]
    bad = {"kind": "compress", "size": 8, "learning_rate": 1e30, "name": "too fast"}
    mixed = bank_trained(tmp_path / "with", [good[0], bad, good[1]])
    clean = bank_trained(tmp_path / "without", good)
    assert all(same(head, mixed[name]) for name, head in clean.items())
    _, about = HeadBank.load(tmp_path / "with" / "heads.safetensors")
    assert list(about["stopped"]) == ["too fast"] and "became" in about["stopped"]["too fast"]
    assert about["identity"] == "this" and about["feed_seconds"] > 0 and all(s > 0 for s in about["seconds"].values())
    assert "too fast is dropped: its" in (tmp_path / "with" / "log.jsonl").read_text()
    assert HeadBank.load(tmp_path / "without" / "heads.safetensors")[1]["stopped"] == {}
    bank_trained(tmp_path / "last", [good[0], bad], epochs=1 / 6)  # even if only the last step did it
    assert list(HeadBank.load(tmp_path / "last" / "heads.safetensors")[1]["stopped"]) == ["too fast"]


def test_a_heads_own_rate(tmp_path):
    own = bank_trained(tmp_path / "0", [{"kind": "pool", "learning_rate": 0.1}])
    default = bank_trained(tmp_path / "1", [{"kind": "pool"}])
    zero = bank_trained(tmp_path / "2", [{"kind": "pool", "learning_rate": 0.0}])  # 0 = the bank's
    assert not same(own, default) and same(zero, default)


def test_saved_and_loaded_it_is_the_same(all_kinds, tmp_path):
    all_kinds.save(tmp_path / "a.safetensors", {"note": [1, "x"]})
    loaded, about = HeadBank.load(tmp_path / "a.safetensors")
    assert loaded.names == all_kinds.names and loaded.entries == all_kinds.entries and loaded.shape == all_kinds.shape
    assert about["note"] == [1, "x"]
    assert same(loaded, all_kinds) and not loaded.training
    generator = torch.Generator().manual_seed(0)
    layers = torch.randn(2, BACKBONE.layers, 5, BACKBONE.width, generator=generator)
    states = States(layers, torch.ones(2, 5, dtype=torch.bool))
    expected = all_kinds(states)
    assert list(expected) == all_kinds.names
    for name, logits in loaded(states).items():
        assert logits.shape == (2, 5, 2)
        assert torch.equal(logits, expected[name])


def test_it_reads_no_more_layers_and_positions_than_its_heads():
    assert HeadBank([{"kind": "last"}], **SHAPE).reads == "last"
    assert HeadBank([{"kind": "last"}, {"kind": "pool"}], **SHAPE).reads == "all"
    labels = {**SHAPE, "task": "labels"}
    cls = [{"kind": kind} for kind in sorted(HEADS) if not HEADS[kind].needs_tokens]
    assert len(cls) > 3
    assert HeadBank(cls, **labels).positions == "cls"
    assert HeadBank([*cls, {"kind": "compress", "tokens": "all"}], **labels).positions == "all"
    assert HeadBank([{"kind": "last"}], **SHAPE).positions == "all"


def test_heads_at_shares_are_named_after_them():
    entries = [{"kind": "pool"}, {"kind": "last", "name": "mine", "learning_rate": 0.1}]
    assert at_fractions(entries, (1.0,)) == entries
    at_shares = at_fractions(entries, (0.3, 1.0, 0.005))
    names = ["pool @ 30 %", "mine @ 30 %", "pool", "mine", "pool @ 0.5 %", "mine @ 0.5 %"]
    assert unique_names(at_shares) == names == HeadBank(at_shares, **SHAPE).names
    assert [entry.get("fraction", 1) for entry in at_shares] == [0.3, 0.3, 1, 1, 0.005, 0.005]
    assert at_shares[1]["learning_rate"] == 0.1


@pytest.mark.device
def test_shares_learn_in_the_same_passes_and_do_not_disturb(all_kinds, tmp_path):
    entries = [{"kind": "pool"}, {"kind": "conv", "dropout": 0.3}]
    alone = bank_trained(tmp_path / "alone", entries)
    shares = bank_trained(tmp_path / "shares", at_fractions(entries, (0.2, 1.0, 0.6)), epochs=1)
    fresh = HeadBank(at_fractions(entries, (0.2, 1.0, 0.6)), **SHAPE, seed=1)
    assert all(same(head, shares[name]) for name, head in alone.items())
    assert all(not same(head, fresh[name]) for name, head in shares.items())
    loaded, _ = HeadBank.load(tmp_path / "shares" / "heads.safetensors")
    assert loaded.entries == fresh.entries and all(same(head, shares[name]) for name, head in loaded.items())


def test_a_share_learns_as_if_there_were_nothing_else(tmp_path):
    """An update of a share is one of ordinary training on exactly the windows that had come together."""
    entries = at_fractions([{"kind": "attend", "name": "dot"}], (0.4,))
    bank = bank_trained(tmp_path, entries, epochs=1, batch_size=48)  # one batch of all windows: one update
    head = HeadBank(entries, **SHAPE, seed=1)["dot @ 40 %"].train()
    windows = DATA["train"].windows
    chosen = np.isin(windows.example, nested_fraction(len(DATA["train"].records), 0.4, 1))
    batch = collate(windows, np.flatnonzero(chosen), BACKBONE.pad)
    optimizer = torch.optim.AdamW(head.parameters(), lr=1e-2, weight_decay=0)
    TASK.loss(head.logits(live(BACKBONE)(batch)), batch).backward()
    torch.nn.utils.clip_grad_norm_(head.parameters(), 1.0)
    optimizer.step()
    for key, value in head.state_dict().items():
        torch.testing.assert_close(bank["dot @ 40 %"].state_dict()[key], value, rtol=1e-4, atol=1e-6)


def test_twenty_heads_hold_one_batch_of_states(tmp_path, monkeypatch):
    alive, most, step = weakref.WeakSet(), [], Feed.__call__

    def tracked(self, *args):
        batch, states = step(self, *args)
        most.append(len(alive) + 1)
        alive.add(states.layers)
        return batch, states

    monkeypatch.setattr(Feed, "__call__", tracked)
    bank_trained(tmp_path, at_fractions([{"kind": "pool"}] * 5 + [{"kind": "last"}] * 5, (1.0, 0.5)))
    assert len(most) == 6 and set(most) == {1}


def test_names_are_readable_and_unique():
    entries = [
        {"kind": "pool"},
        {"kind": "pool"},
        {"kind": "pool", "name": "Pool"},
        {"kind": "compress", "size": 8, "skip": True},
        {"kind": "last", "name": "backbone"},
        {"kind": "last", "name": "a/b"},
        {"kind": "last", "name": "a b"},
    ]
    names = unique_names(entries)
    assert names == ["pool", "pool #2", "Pool #3", "compress size=8 skip", "backbone #2", "a/b", "a b #2"]
    files = [file_name(name).lower() for name in names]
    assert len(set(files)) == len(files)
    assert not any(set(name) & set('/\\: "') for name in files)


def test_a_file_that_is_no_bank_is_refused_in_one_line(tmp_path):
    path = tmp_path / "a.safetensors"
    bank = HeadBank([{"kind": "pool"}], **SHAPE)
    bank.save(path)
    whole = path.read_bytes()

    def other(about: dict) -> bytes:
        save_tensors(path, {"x": torch.zeros(1)}, about)
        return path.read_bytes()

    contents = [b"", whole[:-20], whole[:50], other({}), other({"entries": [{"kind": "pool"}], "shape": SHAPE})]
    for content in contents:
        path.write_bytes(content)
        with pytest.raises(UserError, match=r"a\.safetensors: damaged, or not a bank of heads") as caught:
            HeadBank.load(path)
        assert "\n" not in str(caught.value)
    path.unlink()
    with pytest.raises(UserError, match="no such bank of heads"):
        HeadBank.load(path)
