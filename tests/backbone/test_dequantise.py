"""int8 graphs as the quantiser of onnxruntime writes them, made from a tiny BERT, back into an encoder."""

from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from bertvision.backbone.backbone import Backbone
from bertvision.backbone.onnx_weights import digest, read_weights
from bertvision.errors import UserError
from encoders import save_tiny, tiny_encoder

onnx = pytest.importorskip("onnx")
from int8 import int8_graph  # noqa: E402


@pytest.fixture
def graph(tmp_path: Path) -> Path:
    file = tmp_path / "model.onnx"
    file.write_bytes(int8_graph(tiny_encoder("bert").state_dict()))
    return file


def test_every_weight_comes_back_within_half_a_step(graph):
    state = tiny_encoder("bert").state_dict()
    weights = read_weights(graph, prefix="bert.")
    assert set(weights) == set(state)
    for name, tensor in state.items():
        step = float(tensor.max() - tensor.min()) / 255
        exact = tensor.ndim == 1
        np.testing.assert_allclose(weights[name], tensor.numpy(), rtol=0, atol=0 if exact else step * 0.501)
        assert weights[name].dtype == np.float32
        assert weights[name].flags.c_contiguous


def test_only_one_model_has_the_digest(graph):
    weights = read_weights(graph, prefix="bert.")
    found = digest(weights)
    assert digest(dict(reversed(weights.items()))) == found
    changed = weights["encoder.layer.0.output.dense.bias"].copy()
    changed[0] = np.nextafter(changed[0], np.float32(1))
    assert digest({**weights, "encoder.layer.0.output.dense.bias": changed}) != found


def test_weights_of_another_model_are_refused(graph):
    with pytest.raises(UserError, match=r"model.onnx: holds no weights below 'roberta.'"):
        read_weights(graph, prefix="roberta.")


def test_a_matrix_without_a_bias_is_refused(tmp_path):
    state = tiny_encoder("bert").state_dict()
    model = onnx.load_from_string(int8_graph(state))
    del model.graph.node[4]  # the first addition of a bias
    (tmp_path / "model.onnx").write_bytes(model.SerializeToString())
    with pytest.raises(UserError, match="no bias follows the product with onnx::MatMul_"):
        read_weights(tmp_path / "model.onnx", prefix="bert.")


def test_one_scale_per_column_is_refused(tmp_path):
    table = "bert.embeddings.word_embeddings.weight"
    model = onnx.load_from_string(int8_graph(tiny_encoder("bert").state_dict()))
    scale = next(tensor for tensor in model.graph.initializer if tensor.name == f"{table}_scale")
    scale.CopyFrom(onnx.numpy_helper.from_array(np.ones(32, np.float32), f"{table}_scale"))
    (tmp_path / "model.onnx").write_bytes(model.SerializeToString())
    with pytest.raises(UserError, match=f"{table}: quantised in a way"):
        read_weights(tmp_path / "model.onnx", prefix="bert.")


def test_the_loader_takes_the_weights(graph, tmp_path):
    directory = save_tiny(tmp_path / "encoder", "bert")
    weights = read_weights(graph, prefix="bert.")
    save_file(weights, directory / "model.safetensors", metadata={"format": "pt"})
    loaded = Backbone.load(str(directory)).model.state_dict()
    for name, value in weights.items():
        np.testing.assert_array_equal(loaded[name].numpy(), value)
