"""fp32 weights of an encoder from an int8 ONNX file, under the names that safetensors files use. Nothing is run.

The `onnx` package (tens of megabytes, with protobuf) is an extra that only exporting needs; reading nodes and stored
tensors takes the few functions at the end, which also run nothing and follow no external files.

A quantised tensor NAME is stored as NAME_quantized, NAME_scale and NAME_zero_point; its value is
(quantised - zero point) * scale, one exact rounding per number, hence the same bits on every machine.
"""

import hashlib
from collections import defaultdict
from pathlib import Path
from typing import NamedTuple

import numpy as np

from bertvision.errors import UserError

QUANTISED = "_quantized"
DTYPES = {1: "<f4", 2: "u1", 3: "i1", 6: "<i4", 7: "<i8"}  # TensorProto.DataType; the others do not hold weights

Value = int | memoryview  # of a protobuf field
Fields = dict[int, list[Value]]  # {field number: its values}, numbers as in onnx.proto


class Node(NamedTuple):
    """One operation: its type, and the names of its inputs and outputs."""

    kind: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


class Graph(NamedTuple):
    """The operations in the order of the file, and the stored tensors by name."""

    nodes: list[Node]
    tensors: dict[str, np.ndarray]


def read_weights(file: Path, prefix: str) -> dict[str, np.ndarray]:
    """The weights below `prefix` (such as `bert.`) by name without it: fp32, matrices as `nn.Linear` has them."""
    graph = read_graph(file)
    names = _matrix_names(graph)
    weights = {}
    for key, tensor in graph.tensors.items():
        if key.endswith(QUANTISED):
            name, value = key.removesuffix(QUANTISED), _dequantise(graph, key.removesuffix(QUANTISED))
            if key in names:
                name, value = names[key], value.T
        elif key.endswith((".weight", ".bias")):
            name, value = key, tensor.astype(np.float32)
        else:
            continue
        if name.startswith(prefix):
            weights[name.removeprefix(prefix)] = np.ascontiguousarray(value)
    if not weights:
        raise UserError(f"{file.name}: holds no weights below {prefix!r}; it is another model")
    return weights


def digest(weights: dict[str, np.ndarray]) -> str:
    """sha256 of names, shapes and numbers, independent of the file format."""
    hasher = hashlib.sha256()
    for name, value in sorted(weights.items()):
        hasher.update(f"{name} {value.shape} ".encode())
        hasher.update(np.ascontiguousarray(value, "<f4").data)
    return hasher.hexdigest()


def read_graph(file: Path) -> Graph:
    """The graph in an ONNX file that keeps its tensors inside."""
    graph = Graph([], {})
    try:
        for model in _fields(memoryview(file.read_bytes()))[7]:  # ModelProto.graph
            fields = _fields(model)
            graph.nodes.extend(_node(_fields(message)) for message in fields[1])
            graph.tensors.update(_tensor(_fields(message)) for message in fields[5])  # GraphProto.initializer
    except (ValueError, LookupError, TypeError, OverflowError) as error:
        raise UserError(f"{file.name}: not an ONNX file with its weights inside ({error}); fetch it again") from None
    return graph


def _dequantise(graph: Graph, base: str) -> np.ndarray:
    quantised = graph.tensors[base + QUANTISED].astype(np.int32)
    zero, scale = (graph.tensors.get(base + part) for part in ("_zero_point", "_scale"))
    if zero is None or scale is None or zero.size != 1 or scale.size != 1:
        raise UserError(f"{base}: quantised in a way this program does not know; use another encoder")
    return (quantised - zero.astype(np.int32)).astype(np.float32) * scale.astype(np.float32)


def _matrix_names(graph: Graph) -> dict[str, str]:
    """{stored matrix of a product: its name}, from the bias that is added to the product.

    An exporter numbers the matrices and stores them transposed; the biases keep their names.
    """
    readers: dict[str, list[Node]] = {}
    for node in graph.nodes:
        for name in node.inputs:
            readers.setdefault(name, []).append(node)
    products = [node for node in graph.nodes if node.kind == "MatMulInteger" and node.inputs[1].endswith(QUANTISED)]
    return {node.inputs[1]: f"{_bias_after(node, readers)}.weight" for node in products}


def _bias_after(node: Node, readers: dict[str, list[Node]]) -> str:
    """Follows a product through its scaling to the addition of a bias; the bias's name without `.bias`."""
    path = [node.inputs[1]]
    while len(path) < 6:  # a cast, a multiplication by the scales, the addition
        following = readers.get(node.outputs[0], [])
        if len(following) != 1:
            break
        node = following[0]
        path.append(node.kind)
        bias = [name for name in node.inputs if name.endswith(".bias")]
        if node.kind == "Add" and bias:
            return bias[0].removesuffix(".bias")
    raise UserError(f"no bias follows the product with {' > '.join(path)}; use another encoder")


def _node(fields: Fields) -> Node:
    inputs, outputs, kind = ([_text(value) for value in fields[number]] for number in (1, 2, 4))
    return Node(kind[-1] if kind else "", tuple(inputs), tuple(outputs))


def _tensor(fields: Fields) -> tuple[str, np.ndarray]:
    """Name and value of a TensorProto, which keeps its numbers as raw bytes or, if few, as repeated fields."""
    shape, floats, raw, name = _integers(fields[1]), fields[4], fields[9], fields[8]
    integers = _integers(fields[5] + fields[7])
    dtype = DTYPES[fields[2][-1]]  # type: ignore[index]
    if floats:
        flat = np.concatenate([np.frombuffer(value, "<f4") for value in floats]).astype(dtype)  # type: ignore[arg-type]
    elif integers:
        flat = np.array(integers, dtype)
    else:
        flat = np.frombuffer(raw[-1] if raw else b"", dtype)  # type: ignore[arg-type]
    return _text(name[-1]) if name else "", flat.reshape(shape)


def _fields(message: Value) -> Fields:
    """The fields of a protobuf message: a sequence of keys (field number, wire type) and values."""
    fields: Fields = defaultdict(list)
    message, at = memoryview(message), 0  # type: ignore[arg-type]
    while at < len(message):
        key, at = _varint(message, at)
        value, wire = 0, key & 7
        if wire in (0, 2):
            value, at = _varint(message, at)  # the value itself, or its length
        if wire == 0:
            fields[key >> 3].append(value)
            continue
        size = {1: 8, 2: value, 5: 4}[wire]
        if at + size > len(message):
            raise ValueError("it ends too early")
        fields[key >> 3].append(message[at : at + size])
        at += size
    return fields


def _varint(message: memoryview, at: int) -> tuple[int, int]:
    """The number that begins at `at`, seven bits per byte, lowest first; and the position after it."""
    number = shift = 0
    while True:
        byte = message[at]
        at += 1
        number |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return number, at
        if shift > 63:
            raise ValueError("a number has more than 64 bits")


def _integers(values: list[Value]) -> list[int]:
    """A repeated integer field, packed into bytes or one by one; negative numbers are stored as 64 bits."""
    numbers: list[int] = []
    for value in values:
        if isinstance(value, int):
            numbers.append(value)
            continue
        at = 0
        while at < len(value):
            number, at = _varint(value, at)
            numbers.append(number)
    return [number - (1 << 64) if number >> 63 else number for number in numbers]


def _text(value: Value) -> str:
    return bytes(memoryview(value)).decode()  # type: ignore[arg-type]  # TypeError for a number
