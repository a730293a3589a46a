"""The reader of ONNX files against the onnx package, and against damage."""

import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from bertvision.backbone.onnx_weights import Node, read_graph
from bertvision.errors import UserError

onnx = pytest.importorskip("onnx")

TENSORS = st.sampled_from(["float32", "uint8", "int8", "int32", "int64"]).flatmap(
    lambda dtype: arrays.arrays(dtype, arrays.array_shapes(min_dims=0, max_dims=3, min_side=1, max_side=4))
)
NAMES = st.text(st.characters(codec="utf-8"), min_size=1, max_size=200)


def message(value: np.ndarray, name: str, raw: bool):
    """A TensorProto with its numbers as raw bytes or as repeated fields."""
    kind = onnx.helper.np_dtype_to_tensor_dtype(value.dtype)
    content = value.tobytes() if raw else value.flatten()
    return onnx.helper.make_tensor(name, kind, value.shape, content, raw=raw)


def read(content: bytes):
    with tempfile.TemporaryDirectory() as directory:
        file = Path(directory) / "model.onnx"
        file.write_bytes(content)
        return read_graph(file)


@settings(max_examples=40)
@given(st.dictionaries(NAMES, st.tuples(TENSORS, st.booleans()), max_size=4))
def test_tensors_come_out_as_they_went_in(tensors):
    stored = [message(value, name, raw) for name, (value, raw) in tensors.items()]
    node = onnx.helper.make_node("Add", ["left", "right"], ["sum"], name="addition", axis=3)
    graph = onnx.helper.make_graph([node], "graph", [], [], stored)
    found = read(onnx.helper.make_model(graph).SerializeToString())
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


def test_a_file_cut_short_is_refused():
    stored = [message(np.arange(1000, dtype=np.float32), "a", True)]
    content = onnx.helper.make_model(onnx.helper.make_graph([], "graph", [], [], stored)).SerializeToString()
    with pytest.raises(UserError, match="it ends too early"):
        read(content[:-500])


def test_a_type_that_holds_no_weights_is_refused():
    strings = onnx.helper.make_tensor("words", onnx.TensorProto.STRING, [1], [b"word"])
    model = onnx.helper.make_model(onnx.helper.make_graph([], "graph", [], [], [strings]))
    with pytest.raises(UserError, match="not an ONNX file with its weights inside"):
        read(model.SerializeToString())
