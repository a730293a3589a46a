"""An encoder out of an int8 ONNX graph: its weights in fp32, under the names that safetensors files use.

A quantised tensor NAME is stored as NAME_quantized, NAME_scale and NAME_zero_point; its value is
(quantised - zero point) * scale, one exact rounding per number, hence the same bits on every machine.
"""

import hashlib
from pathlib import Path

import numpy as np

from bertvision.backbone.onnx_graph import Graph, Node, read_graph
from bertvision.errors import UserError

QUANTISED = "_quantized"


def read_weights(file: Path, prefix: str) -> dict[str, np.ndarray]:
    """The weights below `prefix` (such as `bert.`) by name without it: fp32, matrices as `nn.Linear` has them."""
    graph = read_graph(file)
    names = _matrix_names(graph)
    weights = {}
    for key, tensor in graph.tensors.items():
        if key.endswith(QUANTISED):
            base = key.removesuffix(QUANTISED)
            value = _dequantise(graph, base)
            name, value = (names[key], value.T) if key in names else (base, value)
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
    """sha256 of names, shapes and numbers, whichever library writes them into which file."""
    found = hashlib.sha256()
    for name, value in sorted(weights.items()):
        found.update(f"{name} {value.shape} ".encode())
        found.update(np.ascontiguousarray(value, "<f4").data)
    return found.hexdigest()


def _dequantise(graph: Graph, base: str) -> np.ndarray:
    quantised = graph.tensors[base + QUANTISED].astype(np.int32)
    zero, scale = (graph.tensors.get(base + part) for part in ("_zero_point", "_scale"))
    if zero is None or scale is None or zero.size != 1 or scale.size != 1:
        raise UserError(f"{base}: quantised in a way this program does not know; use another encoder")
    return (quantised - zero.astype(np.int32)).astype(np.float32) * scale.astype(np.float32)


def _matrix_names(graph: Graph) -> dict[str, str]:
    """What each stored matrix that something is multiplied by is called: as the bias that is added to the product.

    An exporter calls matrices by number; the biases kept their names. Such matrices lie transposed.
    """
    readers: dict[str, list[Node]] = {}
    for node in graph.nodes:
        for name in node.inputs:
            readers.setdefault(name, []).append(node)
    names = {}
    for node in graph.nodes:
        if node.kind == "MatMulInteger" and node.inputs[1].endswith(QUANTISED):
            names[node.inputs[1]] = f"{_bias_after(node, readers)}.weight"
    return names


def _bias_after(node: Node, readers: dict[str, list[Node]]) -> str:
    """Follows a product through its scaling to the addition of a bias, whose name it gives, without `.bias`."""
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
