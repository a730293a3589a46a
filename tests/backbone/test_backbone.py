"""The states are the encoder's own, of every family; padding, other rows and slices change nothing."""

import json
import subprocess
import sys

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModel, ModernBertConfig

from bertvision import Backbone
from bertvision.backbone import backbone as module
from bertvision.backbone import loading
from bertvision.backbone.anatomy import has_trained_pooler, pooler
from bertvision.backbone.cpu_kernels import packed
from bertvision.backbone.states import POOLED
from bertvision.data.batches import Batch, collate
from bertvision.data.squad import Record
from bertvision.data.windows import make_text_windows, make_windows
from bertvision.errors import UserError
from encoders import FAMILIES, save_tiny
from real import minilm
from runs import ROWS
from runs import batch_of as batch_of_rows

PAIRS = [
    ("who was born in the old city?", "the king was born in the great city of the north."),
    ("when?", "in the year 1066 the war began, and people from the world over were called to it. " * 2),
    ("what is the river called", "a river"),
]
WITH_TYPES = {"bert", "electra", "albert"}


@pytest.fixture(scope="module", params=FAMILIES)
def family(request):
    return request.param


@pytest.fixture(scope="module")
def directory(family, tmp_path_factory):
    return save_tiny(tmp_path_factory.mktemp(family), family)


@pytest.fixture(scope="module")
def backbone(directory):
    return Backbone.load(str(directory))


def pairs(*texts: tuple[str, str]) -> list[Record]:
    return [Record(str(n), question, context, (), (), "", n) for n, (question, context) in enumerate(texts)]


@pytest.fixture(scope="module")
def windows(backbone):
    return make_windows(backbone.tokenizer, pairs(*PAIRS))


def batch_of(tokens: int, backbone: Backbone, rows: int = 1) -> Batch:
    """Windows of exactly this length, of an ordinary token."""
    ids = torch.full((rows, tokens), backbone.tokenizer.token_to_id("e"))
    none = torch.zeros(rows, 2, dtype=torch.long)
    return Batch(np.arange(rows), ids, torch.zeros_like(ids), torch.ones_like(ids, dtype=torch.bool), none)


def test_it_knows_its_shape(backbone, directory):
    assert (backbone.layers, backbone.width, backbone.longest) == (4, 32, 512)
    assert backbone.tokenizer.id_to_token(backbone.pad) in ("<pad>", "[PAD]")
    assert backbone.name == str(directory)
    assert not backbone.training
    assert {parameter.dtype for parameter in backbone.parameters()} == {torch.float32}


@torch.no_grad()
def test_states_are_the_hidden_states_of_transformers(backbone, windows, directory):
    batch = collate(windows, np.arange(3), backbone.pad)
    states = backbone(batch)
    assert states.layers.shape == (3, backbone.layers, batch.ids.shape[1], backbone.width)
    assert torch.equal(states.mask, batch.mask)
    inputs = {"input_ids": batch.ids, "attention_mask": batch.mask.long()}
    if backbone.model.config.model_type in WITH_TYPES:
        inputs["token_type_ids"] = batch.types
    reference = AutoModel.from_pretrained(directory).eval()(**inputs, output_hidden_states=True)
    assert torch.equal(states.layers, torch.stack(reference.hidden_states, dim=1))
    assert torch.equal(states.layers[:, -1], reference.last_hidden_state)
    assert torch.equal(backbone(batch, "last").layers, states.layers[:, -1:])


@torch.no_grad()
def test_padding_and_other_rows_change_nothing(backbone, windows):
    together = backbone(collate(windows, np.arange(3), backbone.pad)).layers
    for row, length in enumerate(windows.lengths):
        alone = backbone(collate(windows, np.array([row]), backbone.pad)).layers[0]
        torch.testing.assert_close(together[row, :, :length], alone, atol=2e-6, rtol=1e-5)


@torch.no_grad()
def test_token_types_reach_the_encoders_that_have_them(backbone, windows):
    batch = collate(windows, np.array([0]), backbone.pad)
    flipped = Batch(batch.index, batch.ids, 1 - batch.types, batch.mask, batch.targets)
    changed = not torch.equal(backbone(batch).layers, backbone(flipped).layers)
    assert changed == (backbone.model.config.model_type in WITH_TYPES)


@torch.no_grad()
def test_the_longest_window_runs_and_a_longer_one_does_not(backbone, family):
    states = backbone(batch_of(backbone.longest, backbone))
    assert states.layers.shape[2] == backbone.longest
    assert bool(states.layers.isfinite().all())
    if family != "deberta-v2":  # its positions are relative, so that it has no end of them
        with pytest.raises((IndexError, RuntimeError)):
            backbone(batch_of(backbone.longest + 1, backbone))


def test_gradients_reach_the_embeddings(backbone, windows):
    backbone(collate(windows, np.arange(2), backbone.pad), "last").layers.square().sum().backward()
    gradient = backbone.model.embeddings.word_embeddings.weight.grad
    assert gradient is not None
    assert bool(gradient.abs().sum() > 0)
    backbone.zero_grad(set_to_none=True)


@pytest.mark.parametrize("reads", ["all", "last", (0, 2)])
@torch.no_grad()
def test_slices_give_the_states_of_the_whole(backbone, reads, monkeypatch):
    batch = batch_of_rows(backbone)
    whole = backbone(batch, reads)
    monkeypatch.setattr(module, "SLICE", 20)
    sliced = backbone(batch, reads)
    assert torch.equal(sliced.mask, batch.mask)
    assert bool(sliced.layers.isfinite().all())  # padding too: heads multiply it by zero
    for row, length in enumerate(ROWS):
        torch.testing.assert_close(sliced.layers[row, :, :length], whole.layers[row, :, :length], atol=2e-6, rtol=1e-5)


@torch.no_grad()
@pytest.mark.parametrize("reads", ["all", "last", (0, 2)])
@pytest.mark.parametrize("faster", [False, True])
def test_texts_of_pairs_apart_are_encoded_as_if_they_were_alone(backbone, reads, faster, monkeypatch):
    """Whatever else is in the batch, and however it is cut into slices."""
    windows = make_text_windows(backbone.tokenizer, PAIRS, np.zeros(3), apart=True)
    run = packed(backbone) if faster else backbone
    if faster:
        monkeypatch.setattr(module, "SLICE", 20)
    states = run(collate(windows, np.arange(3), backbone.pad), reads)
    assert states.layers.shape == (3, {"all": 4, "last": 1}.get(reads, 2), 2, backbone.width)
    assert bool(states.mask.all()) and states.mask.shape == (3, 2)
    for row, pair in enumerate(PAIRS):
        for place, text in enumerate(pair):
            alone = make_text_windows(backbone.tokenizer, [(text,)], np.zeros(1))
            whole = backbone(collate(alone, np.array([0]), backbone.pad), reads)
            assert states.numbers == whole.numbers
            torch.testing.assert_close(states.layers[row, :, place], whole.layers[0].mean(dim=1), atol=2e-6, rtol=1e-5)


def test_gradients_reach_both_texts_of_pairs_apart(backbone):
    windows = make_text_windows(backbone.tokenizer, PAIRS[:1], np.zeros(1), apart=True)
    for place in (0, 1):
        backbone(collate(windows, np.array([0]), backbone.pad), "last").layers[:, :, place].square().sum().backward()
        touched = backbone.model.embeddings.word_embeddings.weight.grad.abs().sum(dim=1) > 0
        own = backbone.tokenizer.encode(PAIRS[0][place]).ids
        assert set(own) >= set(torch.nonzero(touched).flatten().tolist()) > set()
        backbone.zero_grad(set_to_none=True)


def test_training_sees_the_batch_as_one(backbone, monkeypatch):
    monkeypatch.setattr(module, "SLICE", 20)
    monkeypatch.setattr(backbone, "_in_slices", None)  # to call it would fail
    assert backbone(batch_of_rows(backbone)).layers.requires_grad


def test_an_encoder_with_all_positions_after_the_padding(tmp_path):
    found = Backbone.load(str(save_tiny(tmp_path, "roberta", max_position_embeddings=130)))
    assert found.longest == 128


@pytest.mark.parametrize(
    ("family", "entry", "value"),
    [
        ("bert", "hidden_act", "relu"),
        ("bert", "num_attention_heads", 8),
        ("bert", "layer_norm_eps", 1e-5),
        ("distilbert", "activation", "relu"),
        ("distilbert", "n_heads", 8),
        ("albert", "num_hidden_layers", 2),
        ("electra", "hidden_act", "relu"),
        ("roberta", "num_attention_heads", 2),
        ("mpnet", "layer_norm_eps", 1e-5),
        ("deberta-v2", "pos_att_type", ["c2p"]),
    ],
)
def test_the_fingerprint_knows_what_weights_do_not_show(family, entry, value, tmp_path):
    directory = save_tiny(tmp_path, family)
    before = Backbone.load(str(directory)).fingerprint
    table = json.loads((directory / "config.json").read_text())
    (directory / "config.json").write_text(json.dumps({**table, "use_cache": True, "of_a_later_version": 1}))
    assert Backbone.load(str(directory)).fingerprint == before
    (directory / "config.json").write_text(json.dumps({**table, entry: value}))
    assert Backbone.load(str(directory)).fingerprint != before


@pytest.mark.parametrize(
    ("entry", "value"),
    [
        ("local_attention", 64),
        ("layer_types", ["full_attention"] * 22),
        ("norm_eps", 1e-3),
        ("hidden_activation", "relu"),
        (
            "rope_parameters",
            {one: {"rope_type": "default", "rope_theta": 5.0} for one in ("full_attention", "sliding_attention")},
        ),
    ],
)
def test_the_fingerprint_knows_what_other_kinds_of_encoders_vary(entry, value):
    usual = ModernBertConfig()
    assert (
        module.unusual(usual)
        == module.unusual(ModernBertConfig(use_cache=True, hidden_size=64, embedding_dropout=0.5))
        == {}
    )
    assert entry in module.unusual(ModernBertConfig(**{entry: value}))


def test_the_fingerprint_is_that_of_weights_and_tokenizer(tmp_path):
    one = Backbone.load(str(save_tiny(tmp_path / "one", "bert")))
    same = Backbone.load(str(save_tiny(tmp_path / "same", "bert")))
    other = Backbone.load(str(save_tiny(tmp_path / "other", "bert", seed=1)))
    before = one.fingerprint
    assert len(before) == 64
    assert before == one.fingerprint == same.fingerprint
    assert loading.tokenizer_of(one.name).to_str() == one.tokenizer.to_str()  # without the weights
    assert before != other.fingerprint
    make_windows(one.tokenizer, pairs(*PAIRS))
    assert one.fingerprint == before  # use changes nothing
    with torch.no_grad():
        weight = one.model.encoder.layer[2].output.dense.bias
        weight[7] = torch.nextafter(weight[7], torch.tensor(1.0))
    assert one.fingerprint != before
    same.tokenizer.add_tokens(["neologism"])
    assert same.fingerprint != before


def test_a_pooler_that_is_not_in_the_file_is_made_the_same_every_time(tmp_path):
    path = save_tiny(tmp_path, "bert") / "model.safetensors"
    save_file({key: value for key, value in load_file(path).items() if "pooler" not in key}, path)
    torch.manual_seed(1)
    before = torch.get_rng_state()
    one = Backbone.load(str(tmp_path)).fingerprint
    assert torch.equal(before, torch.get_rng_state())  # and nobody else's random numbers change
    torch.manual_seed(2)
    assert Backbone.load(str(tmp_path)).fingerprint == one


def test_the_poolers_output_is_the_encoders_own_and_stands_at_cls(backbone, windows):
    batch = collate(windows, np.arange(len(windows)), backbone.pad)
    if pooler(backbone.model) is None:
        with pytest.raises(UserError, match=r"^head\.pooled: .* has no trained pooler"):
            backbone(batch, (POOLED,))
        return
    with torch.no_grad():
        states, whole = backbone(batch, (POOLED, 0, backbone.layers - 1)), backbone(batch)
        types = {"token_type_ids": batch.types} if backbone._has_types else {}
        wanted = backbone.model(batch.ids, attention_mask=batch.mask.long(), **types).pooler_output
    torch.testing.assert_close(states.layer(POOLED)[:, 0], wanted, atol=1e-5, rtol=1e-5)
    assert (states.layer(POOLED)[:, 1:] == 0).all()
    torch.testing.assert_close(states.only((0,)).layers[:, 0], whole.layer(0), atol=1e-5, rtol=1e-5)
    with torch.no_grad():
        torch.testing.assert_close(backbone(batch, (POOLED,)).layers[:, 0, 0], wanted, atol=1e-5, rtol=1e-5)


def test_a_pooler_of_random_numbers_is_not_read(tmp_path):
    path = save_tiny(tmp_path, "bert") / "model.safetensors"
    assert has_trained_pooler(Backbone.load(str(tmp_path)).model)
    save_file({key: value for key, value in load_file(path).items() if "pooler" not in key}, path)
    backbone = Backbone.load(str(tmp_path))
    with pytest.raises(UserError, match="has no trained pooler"):
        packed(backbone)(batch_of(4, backbone), (POOLED, 1))


def test_loading_is_silent_and_leaves_the_settings_of_transformers(tmp_path):
    """In a process of its own: DeBERTa's module uses what torch deprecates, but only when it is first imported."""
    save_tiny(tmp_path, "deberta-v2")
    code = """
import sys; from transformers.utils import logging; from bertvision import Backbone
logging.set_verbosity_info(); print(Backbone.load(sys.argv[1]).layers, logging.get_verbosity() == logging.INFO)
"""
    done = subprocess.run([sys.executable, "-W", "error", "-c", code, str(tmp_path)], capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("4 True\n", "")


@torch.no_grad()
def test_minilm():
    found = minilm()
    assert (found.layers, found.width, found.longest, found.pad) == (7, 384, 512, 0)
    assert sum(parameter.numel() for parameter in found.parameters()) == 22_713_216
    texts = ["The cat sits on the mat.", "A kitten is sitting on a rug.", "Interest rates rose sharply in March."]
    windows = make_windows(found.tokenizer, pairs(*((text, "") for text in texts)))
    batch = collate(windows, np.arange(3), found.pad)
    states = found(batch)
    assert states.layers.shape == (3, 7, int(windows.lengths.max()), 384)
    weight = states.mask[..., None].float()
    sentence = torch.nn.functional.normalize((states.layers[:, -1] * weight).sum(1) / weight.sum(1), dim=-1)  # (3, 384)
    near, far = float(sentence[0] @ sentence[1]), float(sentence[0] @ sentence[2])
    assert near > 0.5 > 0.3 > far  # it was trained to tell such sentences apart
