"""The model card of a reader says under which licence it may be used."""

import pytest

from bertvision.serve.card import write_card
from readers import tiny_reader


@pytest.mark.parametrize(
    ("sources", "front", "lines"),
    [
        (["data/squad2/train.json", "data/squadshifts/reddit.json"], "cc-by-sa-4.0", ["SQuAD: CC BY-SA 4.0"]),
        (["data/squadshifts/reddit.json"], "cc-by-4.0", ["SQuADShifts: CC BY 4.0"]),
        (["sample:train"], "other", ["sample set: Apache-2.0"]),
    ],
)
def test_the_text_it_was_trained_on_rules_its_licence(sources, front, lines):
    facts = {"data": {f"set {number}": {"source": source} for number, source in enumerate(sources)}}
    card = write_card("a", tiny_reader().config, {"checkpoint": 1.0, "seed": 1, "tune_f1": 1.0, "f1": 1.0}, facts)
    assert f"license: {front}\n" in card
    assert all(f"- {line}" in card for line in lines)


def test_the_title_is_text_and_nothing_else():
    title = "a <script>alert(1)</script>\n---\nlicense: mit\n# [b](http://c) *d* `e`"
    card = write_card(title, tiny_reader().config, {"checkpoint": 1.0, "seed": 1, "tune_f1": 1.0, "f1": 1.0}, {})
    heading = next(line for line in card.split("\n") if line.startswith("# "))
    assert heading == r"# a \<script\>alert(1)\</script\> --- license: mit \# \[b\](http://c) \*d\* \`e\`"
    assert "license: mit" not in card.split("\n") and "<script>" not in card


def test_the_hub_reads_scores_data_and_language():
    from huggingface_hub import ModelCard

    facts = {"data": {"train": {"source": "squad_v2"}, "test": {"source": "data/squadshifts/reddit.json"}}}
    row = {"checkpoint": 1.0, "seed": 1, "tune_f1": 1.0, "exact": 61.234, "f1": 70.0, "HasAns_f1": 65.5}
    found = ModelCard(write_card('a "b": c', tiny_reader().config, row, facts)).data
    assert (found.language, found.datasets, found.model_name) == ("en", ["rajpurkar/squad_v2"], 'a "b": c')
    scores = {(one.dataset_type, one.metric_type, one.metric_name): one.metric_value for one in found.eval_results}
    assert scores == {
        ("squadshifts", "exact_match", "exact"): 61.23,
        ("squadshifts", "f1", "f1"): 70.0,
        ("squadshifts", "f1", "HasAns_f1"): 65.5,
    }
    other = {"data": {"train": {"source": "mine.csv"}}}
    plain = ModelCard(
        write_card(
            "a", tiny_reader().config, row | {"compressed": {"how": "rank", "score": 1.0, "before": None}}, other
        )
    ).data
    assert (
        plain.language is None and plain.datasets is None and plain.eval_results is None
    )  # not the scores of this one
