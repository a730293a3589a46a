"""The sizes that the papers print, on BERT-large: 25 layers of 1,024, and 335,143,938 parameters."""

import pytest
import torch

from bertvision.backbone.states import States
from bertvision.heads import build_head, head_name

BERT_LARGE = 335_143_938


def size(spec: dict, task: str) -> int:
    with torch.device("meta"):
        return build_head(spec, layers=25, width=1024, task=task).parameter_count()


@pytest.mark.parametrize(
    ("spec", "parameters"),
    [
        ({"kind": "last"}, 2_050),
        ({"kind": "pool"}, 2_076),
        ({"kind": "compress", "size": 386}, 414_952),
        ({"kind": "compress", "size": 386, "skip": True}, 417_000),
        ({"kind": "compress", "size": 386, "shared": False}, 9_910_552),
        ({"kind": "compress", "size": 386, "shared": False, "skip": True}, 9_912_600),
        ({"kind": "compress", "size": 64}, 68_802),
        ({"kind": "compress", "size": 64, "skip": True}, 70_850),
        ({"kind": "compress", "size": 64, "shared": False}, 1_643_202),
        ({"kind": "compress", "size": 64, "shared": False, "skip": True}, 1_645_250),
        ({"kind": "compress", "size": 386, "pool_first": True, "skip": True}, 398_498),
        ({"kind": "compress", "size": 386, "squeezed_mix": True}, 811_400),  # "386 shared skip Tenney"
    ],
    ids=lambda value: head_name(value) if isinstance(value, dict) else None,
)
def test_published_sizes_to_the_unit(spec: dict, parameters: int) -> None:
    assert size(spec, "spans") == parameters


@pytest.mark.parametrize(
    ("spec", "percent"),
    [
        ({}, 0.099),
        ({"dilated": True}, 0.121),
        ({"input": "pooled"}, 0.093),
        ({"input": "pooled", "weights": "mean"}, 0.093),
        ({"input": "compressed"}, 0.207),
        ({"input": "compressed", "form": "grid"}, 0.332),
        ({"input": "compressed", "form": "inception"}, 1.994),
        ({"input": "compressed", "form": "xception"}, 1.970),
    ],
    ids=str,
)
def test_convolutions_come_near_the_published_percentages(spec: dict, percent: float) -> None:
    assert size({"kind": "conv", **spec}, "spans") == pytest.approx(BERT_LARGE * percent / 100, rel=0.05)


@pytest.mark.parametrize(
    ("spec", "parameters"),
    [({}, 267_010), ({"skip": True}, 267_010 + 2 * 1024), ({"network": "full"}, 20_716_634)],
    ids=["short", "short + last [CLS]", "full"],
)
def test_xception_on_the_cls_column_has_the_published_size(spec: dict, parameters: int) -> None:
    """On 26 channels, the pooler's output among them."""
    assert size({"kind": "conv", "form": "xception", "pooled": True, **spec}, "labels") == parameters


def test_full_xception_runs() -> None:
    head = build_head({"kind": "conv", "form": "xception", "network": "full"}, layers=2, width=64, task="score")
    logits = head.logits(States(torch.randn(2, 2, 1, 64), torch.ones(2, 1, dtype=torch.bool)))
    assert logits.shape == (2, 1) and logits.isfinite().all()
