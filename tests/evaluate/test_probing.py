"""The expected layer of edge probing."""

import pytest

from bertvision.evaluate.probing import expected_layer, gains_of_layers


@pytest.mark.parametrize(
    ("scores", "expected"),
    [
        ([50, 60, 60, 60], 1.0),  # the first block does it all
        ([50, 50, 50, 62], 3.0),
        ([40, 50, 60, 60], 1.5),
        ([40, 50, 45, 60], (10 - 2 * 5 + 3 * 15) / 20),  # a layer may take away
        ([40, 40], None),
        ([40, 30, 35], None),
    ],
)
def test_layers_weighted_by_what_they_add(scores, expected):
    assert expected_layer(scores) == (None if expected is None else pytest.approx(expected))
    assert scores[0] + sum(gains_of_layers(scores)) == scores[-1]
