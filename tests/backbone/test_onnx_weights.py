"""The reader of ONNX files against the onnx package and against damage; int8 weights of a tiny BERT back in fp32."""

import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from bertvision.backbone.onnx_weights import Graph, Node, digest, read_graph, read_weights
from bertvision.errors import UserError
from encoders import tiny_encoder

onnx = pytest.importorskip("onnx")
from int8 import int8_graph  # noqa: E402

TENSORS = st.sampled_from(["float32", "uint8", "int8", "int32", "int64"]).flatmap(
    lambda dtype: arrays.arrays(dtype, arrays.array_shapes(min_dims=0, max_dims=3, min_side=1, max_side=4))
)
NAMES = st.text(st.characters(codec="utf-8"), min_size=1, max_size=200)
TABLE = "bert.embeddings.word_embeddings.weight"


def message(value: np.ndarray, name: str, raw: bool):
    """A TensorProto with its numbers as raw bytes or as repeated fields."""
    kind = onnx.helper.np_dtype_to_tensor_dtype(value.dtype)
    content = value.tobytes() if raw else value.flatten()
    return onnx.helper.make_tensor(name, kind, value.shape, content, raw=raw)


def model_of(tensors, nodes=()) -> bytes:
    graph = onnx.helper.make_graph(list(nodes), "graph", [], [], tensors)
    return onnx.helper.make_model(graph).SerializeToString()


def read(content: bytes) -> Graph:
    with tempfile.TemporaryDirectory() as directory:
        file = Path(directory) / "model.onnx"
        file.write_bytes(content)
        return read_graph(file)


@settings(max_examples=40)
@given(st.dictionaries(NAMES, st.tuples(TENSORS, st.booleans()), max_size=4))
def test_tensors_come_out_as_they_went_in(tensors):
    node = onnx.helper.make_node("Add", ["left", "right"], ["sum"], name="addition", axis=3)
    found = read(model_of([message(value, name, raw) for name, (value, raw) in tensors.items()], [node]))
    assert found.nodes == [Node("Add", ("left", "right"), ("sum",))]
    assert list(found.tensors) == list(tensors)
    for name, (value, _) in tensors.items():
        assert found.tensors[name].dtype == value.dtype
        np.testing.assert_array_equal(found.tensors[name], value)


@given(st.binary(max_size=60))
def test_any_bytes_are_read_or_refused_in_one_line(content):
    try:
        read(b"\x3a" + bytes([len(content)]) + content)  # field 7, the graph
    except UserError as error:
        assert str(error).startswith("model.onnx: not an ONNX file")
        assert "\n" not in str(error)


def test_files_that_are_cut_or_hold_no_weights_are_refused():
    content = model_of([message(np.arange(1000, dtype=np.float32), "a", True)])
    with pytest.raises(UserError, match="it ends too early"):
        read(content[:-500])
    strings = onnx.helper.make_tensor("words", onnx.TensorProto.STRING, [1], [b"word"])
    with pytest.raises(UserError, match="not an ONNX file with its weights inside"):
        read(model_of([strings]))


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A tiny BERT as the quantiser of onnxruntime writes it."""
    file = tmp_path / "model.onnx"
    file.write_bytes(int8_graph(tiny_encoder("bert").state_dict()))
    return file


def test_every_weight_comes_back_within_half_a_step(file):
    state = tiny_encoder("bert").state_dict()
    weights = read_weights(file, prefix="bert.")
    assert set(weights) == set(state)
    for name, tensor in state.items():
        step = float(tensor.max() - tensor.min()) / 255
        exact = tensor.ndim == 1
        np.testing.assert_allclose(weights[name], tensor.numpy(), rtol=0, atol=0 if exact else step * 0.501)
        assert weights[name].dtype == np.float32 and weights[name].flags.c_contiguous
    found = digest(weights)
    assert digest(dict(reversed(weights.items()))) == found
    weights["encoder.layer.0.output.dense.bias"][0] += 1e-6
    assert digest(weights) != found


def without_a_bias(model) -> None:
    del model.graph.node[4]  # the first addition of a bias


def with_a_scale_per_column(model) -> None:
    scale = next(tensor for tensor in model.graph.initializer if tensor.name == f"{TABLE}_scale")
    scale.CopyFrom(onnx.numpy_helper.from_array(np.ones(32, np.float32), f"{TABLE}_scale"))


@pytest.mark.parametrize(
    ("change", "prefix", "message"),
    [
        (lambda model: None, "roberta.", r"model.onnx: holds no weights below 'roberta.'"),
        (without_a_bias, "bert.", "no bias follows the product with onnx::MatMul_"),
        (with_a_scale_per_column, "bert.", f"{TABLE}: quantised in a way"),
    ],
)
def test_graphs_of_another_kind_are_refused(file, change, prefix, message):
    model = onnx.load(file)
    change(model)
    file.write_bytes(model.SerializeToString())
    with pytest.raises(UserError, match=message):
        read_weights(file, prefix)
