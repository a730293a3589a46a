"""`params`: the published counts of encoders, tuning plans and heads, to the unit."""

import pytest
import torch

from bertvision.backbone.anatomy import layer_count, width
from bertvision.backbone.loading import SHAPES, empty_model
from bertvision.backbone.plan import known_plan, known_shape
from bertvision.backbone.tuning import Tuning, apply
from bertvision.errors import UserError
from bertvision.heads.catalog import parameter_table
from encoders import save_tiny

LAST = {"kind": "last"}


@pytest.mark.parametrize(
    ("tuning", "trainable"),
    [
        (Tuning(0), 39_938),
        (Tuning(6), 42_548_738),
        (Tuning(12), 108_311_810),
        (Tuning("all", adapters=64), 110_691_074),
        (Tuning(0, adapters=768), 28_388_354),
        (Tuning(0, norms="trained", biases=True), 102_144 + 1_538),  # BitFit: biases of 12 blocks and embedding
    ],
)
def test_freezing_and_adapters(tuning, trainable):
    table = parameter_table("bert-base-cased", tuning, LAST)
    assert table["trainable"] == trainable
    assert table["backbone_total"] == 108_310_272
    assert table["head"] == 1_538
    assert table["total"] == table["backbone_total"] + table["added"] + table["head"]
    assert table["percent_trainable"] == pytest.approx(100 * trainable / table["total"])


def test_without_a_head():
    """The paper's figure for L0-A64 leaves the read-out out."""
    table = parameter_table("bert-base-cased", Tuning(0, adapters=64))
    assert (table["trainable"], table["added"], table["head"]) == (2_417_664, 24 * 99_136, 0)


@pytest.mark.parametrize(
    ("spec", "parameters", "percent"),
    [
        ({"kind": "pool"}, 2_076, 0.001),
        ({"kind": "compress", "size": 386}, 414_952, 0.124),
        ({"kind": "compress", "size": 386, "shared": False, "skip": True}, 9_912_600, 2.958),
        ({"kind": "compress", "size": 64, "skip": True}, 70_850, 0.021),
    ],
)
def test_heads_on_bert_large(spec, parameters, percent):
    table = parameter_table("bert-large-uncased", head_spec=spec)
    assert table["head"] == parameters
    assert table["backbone_with_readout"] == 335_143_938
    assert table["head_percent"] == pytest.approx(percent, abs=5e-4)


def test_labels_of_a_local_encoder(tmp_path):
    table = parameter_table(str(save_tiny(tmp_path, "electra")), Tuning(0), LAST, task="labels", outputs=3)
    assert (table["layers"], table["width"], table["head"]) == (4, 32, 32 * 3 + 3)
    assert table["trainable"] == 2 * 16 + 6 * 2 * 32 + table["head"]


def test_counting_leaves_no_trace():
    before = torch.get_rng_state()
    parameter_table("minilm", Tuning(0, adapters=8), {"kind": "compress"})
    assert torch.equal(torch.get_rng_state(), before)


def test_impossible_requests():
    with pytest.raises(UserError, match="0 to 6"):
        parameter_table("minilm", Tuning(7), LAST)
    with pytest.raises(UserError, match="no head is called"):
        parameter_table("minilm", Tuning(), {"kind": "compres"})


@pytest.mark.parametrize("name", [name for name in SHAPES if known_shape(name)])
def test_known_numbers_equal_those_of_the_built_encoder(name):
    depth = known_shape(name)["blocks"]
    for tuning in (Tuning(), Tuning(1), Tuning(depth), Tuning(0, adapters=8), Tuning(1, norms="trained")):
        model = empty_model(name)
        assert known_plan(known_shape(name), tuning) == apply(model, tuning)
        assert (known_shape(name)["blocks"] + 1, known_shape(name)["width"]) == (layer_count(model), width(model))
