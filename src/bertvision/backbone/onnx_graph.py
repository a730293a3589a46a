"""Reads the nodes and stored tensors of an ONNX file: as much of the format as weights need, and nothing is run.

The format is protobuf: a message is a row of (field number, wire type, value). Numbers below are those of onnx.proto.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from bertvision.errors import UserError

VARINT, EIGHT_BYTES, LENGTH, FOUR_BYTES = 0, 1, 2, 5
DTYPES = {1: "<f4", 2: "u1", 3: "i1", 6: "<i4", 7: "<i8"}  # TensorProto.DataType; the others do not hold weights

Field = tuple[int, int, int | memoryview]  # number, wire type, value


@dataclass(frozen=True, slots=True)
class Node:
    """One operation: what it is, and the names of what it reads and writes."""

    kind: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Graph:
    """The operations in the order of the file, and the stored tensors by name."""

    nodes: list[Node] = field(default_factory=list)
    tensors: dict[str, np.ndarray] = field(default_factory=dict)


def read_graph(file: Path) -> Graph:
    """The graph in an ONNX file that keeps its tensors inside."""
    graph = Graph()
    try:
        for number, _, value in _fields(memoryview(file.read_bytes())):
            if number == 7:  # ModelProto.graph
                _read_graph(_bytes(value), graph)
    except (ValueError, IndexError, KeyError, TypeError) as error:
        raise UserError(f"{file.name}: not an ONNX file with its weights inside ({error}); fetch it again") from None
    return graph


def _read_graph(message: memoryview, graph: Graph) -> None:
    for number, _, value in _fields(message):
        if number == 1:  # GraphProto.node
            graph.nodes.append(_node(_bytes(value)))
        elif number == 5:  # GraphProto.initializer
            name, tensor = _tensor(_bytes(value))
            graph.tensors[name] = tensor


def _node(message: memoryview) -> Node:
    names: dict[int, list[str]] = {1: [], 2: [], 4: [""]}  # NodeProto.input, .output, .op_type
    for number, _, value in _fields(message):
        if number in names:
            names[number].append(_text(value))
    return Node(names[4][-1], tuple(names[1]), tuple(names[2]))


def _tensor(message: memoryview) -> tuple[str, np.ndarray]:
    """Name and value of a TensorProto, which keeps its numbers as raw bytes or, if few, as repeated fields."""
    name, kind, raw = "", 0, memoryview(b"")
    shape: list[int] = []
    floats: list[np.ndarray] = []
    integers: list[int] = []
    for number, wire, value in _fields(message):
        if number == 1:
            shape += _varints(wire, value)
        elif number == 2:
            kind = int(value)  # type: ignore[arg-type]
        elif number == 4:
            floats.append(np.frombuffer(_bytes(value), "<f4"))
        elif number in (5, 7):
            integers += _varints(wire, value)
        elif number == 8:
            name = _text(value)
        elif number == 9:
            raw = _bytes(value)
    dtype = DTYPES[kind]
    if floats:
        flat = np.concatenate(floats).astype(dtype)
    else:
        flat = np.array(integers, dtype) if integers else np.frombuffer(raw, dtype)
    return name, flat.reshape(shape)


def _fields(message: memoryview) -> Iterator[Field]:
    at = 0
    while at < len(message):
        key, at = _varint(message, at)
        wire = key & 7
        if wire == VARINT:
            number, at = _varint(message, at)
            yield key >> 3, wire, number
            continue
        if wire == LENGTH:
            size, at = _varint(message, at)
        elif wire in (FOUR_BYTES, EIGHT_BYTES):
            size = 4 if wire == FOUR_BYTES else 8
        else:
            raise ValueError(f"wire type {wire}")
        if at + size > len(message):
            raise ValueError("it ends too early")
        yield key >> 3, wire, message[at : at + size]
        at += size


def _varint(message: memoryview, at: int) -> tuple[int, int]:
    """The number that begins at `at`, seven bits per byte, lowest first; and where the next thing begins."""
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


def _varints(wire: int, value: int | memoryview) -> list[int]:
    """A repeated integer field, packed into bytes or one by one; negative ones are stored as 64 bits."""
    numbers = [value] if isinstance(value, int) else []
    if isinstance(value, memoryview):
        at = 0
        while at < len(value):
            number, at = _varint(value, at)
            numbers.append(number)
    return [number - (1 << 64) if number >> 63 else number for number in numbers]


def _bytes(value: int | memoryview) -> memoryview:
    if isinstance(value, int):
        raise ValueError("a number where bytes belong")
    return value


def _text(value: int | memoryview) -> str:
    return bytes(_bytes(value)).decode()
