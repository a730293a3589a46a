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
