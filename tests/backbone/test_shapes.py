"""Encoders of known shape have exactly the published number of parameters, and take no memory."""

import pytest

from bertvision.backbone.anatomy import blocks, layer_count, projections
from bertvision.backbone.loading import SHAPES, SHORT, configuration, empty_model
from bertvision.backbone.tuning import count
from bertvision.errors import UserError
from encoders import FAMILIES, save_tiny, tiny_encoder

PUBLISHED = {
    "bert-base-uncased": 109_482_240,
    "bert-large-uncased": 335_141_888,
    "bert-tiny": 4_385_920,
    "TinyBERT_General_4L_312D": 14_350_248,
    "minilm": 22_713_216,
    "marco": 33_360_000,
    "albert-base-v2": 11_683_584,
    "albert-large-v2": 17_683_968,
    "albert-xxlarge-v2": 222_595_584,
    "distilbert-base-uncased": 66_362_880,
    "distilroberta-base": 82_118_400,
    "roberta-base": 124_645_632,
    "xlm-roberta-base": 278_043_648,
    "electra-small-discriminator": 13_483_008,
    "all-mpnet-base-v2": 109_486_464,
    "deberta-v3-base": 183_831_552,
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_size(name):
    model = empty_model(name)
    assert count(model) == PUBLISHED[name]
    assert {parameter.device.type for parameter in model.parameters()} == {"meta"}


@pytest.mark.parametrize("name", SHAPES)
def test_every_known_shape_can_be_taken_apart(name):
    model = empty_model(name)
    assert set(SHORT.values()) <= SHAPES.keys() and name not in SHORT
    own = blocks(model)
    assert len(projections(model)) == len(own)
    assert len(own) == (1 if name.startswith("albert") else layer_count(model) - 1)


@pytest.mark.parametrize(
    ("name", "same"),
    [
        ("google-bert/bert-base-uncased", "bert-base-uncased"),
        ("sentence-transformers/all-MiniLM-L6-v2", "minilm"),
        ("cross-encoder/ms-marco-MiniLM-L-12-v2", "marco"),
        ("microsoft/MiniLM-L12-H384-uncased", "marco"),
        ("deepset/roberta-base-squad2", "roberta-base"),
    ],
)
def test_organisation_and_case_do_not_matter(name, same):
    assert configuration(name).to_dict() == configuration(same).to_dict()


@pytest.mark.parametrize("family", FAMILIES)
def test_local_directory(family, tmp_path):
    model = empty_model(save_tiny(tmp_path, family))
    assert {n: p.shape for n, p in model.named_parameters()} == {
        n: p.shape for n, p in tiny_encoder(family).named_parameters()
    }
    assert {parameter.device.type for parameter in model.parameters()} == {"meta"}


def test_a_directory_wins_over_a_name_only_if_it_holds_an_encoder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "minilm").mkdir()
    assert layer_count(empty_model("minilm")) == 7
    save_tiny("minilm", "bert")
    assert layer_count(empty_model("minilm")) == 4


@pytest.mark.parametrize(
    ("content", "message"),
    [
        *(
            (content, r"config\.json: not the configuration")
            for content in ("{", "[]", "{}", '{"model_type": "nothing"}')
        ),
        ('{"model_type": "bert", "hidden_size": "wide"}', r"config\.json: not the configuration"),
        ('{"model_type": "bert", "hidden_size": 30, "num_attention_heads": 4}', "cannot build this configuration"),
        ('{"model_type": "bert", "hidden_size": -4}', "cannot build this configuration"),
    ],
)
def test_broken_configuration(tmp_path, content, message):
    with pytest.raises(UserError, match=r"no config\.json in it"):
        empty_model(tmp_path)
    (tmp_path / "config.json").write_text(content)
    with pytest.raises(UserError, match=message) as error:
        empty_model(tmp_path)
    assert "\n" not in str(error.value)


def test_misspelt_name():
    with pytest.raises(UserError, match="did you mean 'bert-base-cased'"):
        empty_model("bert-bse-cased")
