"""An encoder stops at the highest layer that is read, in every family; its states are the same as if it went on."""

import pytest
import torch

from backbone.test_split import batch_of
from bertvision.backbone.anatomy import blocks
from bertvision.backbone.backbone import Backbone
from bertvision.backbone.checkpoint import load_tuned, save_tuned, start_from
from bertvision.backbone.cpu_kernels import packed
from bertvision.backbone.flops import encoder_work
from bertvision.backbone.tuning import Tuning, apply
from encoders import FAMILIES
from runs import encoder


def ran(backbone: Backbone) -> list[int]:
    """Numbers of blocks, one for every time that a block runs from now on."""
    seen: list[int] = []
    for number, block in enumerate(blocks(backbone.model)):
        block.register_forward_hook(lambda *_, number=number: seen.append(number))
    return seen


@pytest.mark.parametrize("reads", [(0,), (1,), (0, 2), (1, 2)])
@pytest.mark.parametrize("family", FAMILIES)
@torch.no_grad()
def test_blocks_above_do_not_run(family, reads):
    backbone = Backbone.load(encoder(family))
    batch = batch_of(backbone)
    wanted = backbone(batch).layers[:, list(reads)]
    seen = ran(backbone)
    assert torch.equal(backbone(batch, reads).layers, wanted)
    assert family == "albert" or seen == list(range(max(1, reads[-1])))
    backbone.cut(reads[-1])
    assert torch.equal(backbone(batch, reads).layers, wanted)
    assert torch.equal(backbone.eval()(batch, reads).layers, wanted)
    assert family == "albert" or len(blocks(backbone.model)) == max(1, reads[-1])


@torch.no_grad()
def test_packed_weights_stop_too():
    backbone = Backbone.load(encoder("bert"))
    batch, fast = batch_of(backbone), packed(backbone)
    whole = fast(batch).layers
    assert torch.equal(fast(batch, (1, 2)).layers, whole[:, 1:3])
    backbone.cut(2)
    assert torch.equal(packed(backbone)(batch, (1, 2)).layers, whole[:, 1:3])


def test_less_work_is_counted():
    model = Backbone.load(encoder("bert")).model
    depths = [encoder_work(model, (layer,)).forward.linear for layer in (1, 2, 3)]
    assert depths[1] - depths[0] == depths[2] - depths[1] > 0
    assert encoder_work(model, (0, 1, 2)) == encoder_work(model, (2,))  # layers below are computed anyway


@pytest.mark.parametrize("layers", ["all", 1, 0])
def test_a_plan_with_a_depth_tunes_and_keeps_no_block_above_it(layers, tmp_path):
    backbone = Backbone.load(encoder("bert"))
    batch = batch_of(backbone)
    apply(backbone.model, Tuning(layers, depth=2), seed=0)
    backbone(batch, (2,)).layers.sum().backward()
    trained = {name: p for name, p in backbone.model.named_parameters() if p.requires_grad}
    assert trained and all(p.grad is not None for p in trained.values())
    assert not any(name.startswith(("encoder.layer.2.", "pooler.")) for name in trained)
    assert any(name.startswith("encoder.layer.1.") for name in trained)
    with torch.no_grad():
        for parameter in trained.values():
            parameter.add_(0.01)
    wanted = backbone(batch, (2,)).layers
    save_tuned(backbone.model, Tuning(layers, depth=2), tmp_path / "whole")
    backbone.cut(2)
    save_tuned(backbone.model, Tuning(layers, depth=2), tmp_path / "cut")
    for name in ("whole", "cut"):
        again = Backbone.load(encoder("bert"))
        load_tuned(again.model, tmp_path / name)
        assert torch.equal(again(batch, (2,)).layers, wanted)


def test_tuning_may_go_on_with_fewer_blocks(tmp_path):
    backbone = Backbone.load(encoder("bert"))
    apply(backbone.model, Tuning())
    with torch.no_grad():
        blocks(backbone.model)[1].attention.self.query.weight.add_(0.5)
    save_tuned(backbone.model, Tuning(), tmp_path / "whole")
    again = Backbone.load(encoder("bert"))
    start_from(again.model, tmp_path / "whole", Tuning(depth=2))
    batch = batch_of(again)
    assert torch.equal(again(batch, (2,)).layers, backbone(batch, (2,)).layers)
    assert not any(p.requires_grad for p in blocks(again.model)[2].parameters())
