"""A tiny BERT's weights in an int8 graph, as the quantiser of onnxruntime writes them (needs the onnx package).

from int8 import int8_graph
"""

import numpy as np
import torch
from onnx import helper, numpy_helper


def int8_graph(state: dict[str, torch.Tensor]) -> bytes:
    """A graph that holds a BERT's weights: tables as uint8, matrices transposed and nameless as int8, the rest fp32."""
    stored, nodes = [], []
    for index, (name, tensor) in enumerate(state.items()):
        value = tensor.numpy()
        if "embeddings.weight" in name:
            stored += _quantised(f"bert.{name}", value, np.uint8)
        elif value.ndim == 2:
            stored += _quantised(f"onnx::MatMul_{index}", value.T, np.int8)
            nodes += _product(index, f"bert.{name.removesuffix('weight')}bias")
        else:
            stored.append(numpy_helper.from_array(value, f"bert.{name}"))
    stored.append(numpy_helper.from_array(np.ones(1, np.float32), "classifier.bias"))
    return helper.make_model(helper.make_graph(nodes, "graph", [], [], stored)).SerializeToString()


def _quantised(name: str, value: np.ndarray, dtype: type) -> list:
    lowest, highest = min(value.min(), 0.0), max(value.max(), 0.0)
    scale = np.float32((highest - lowest) / 255)
    zero = round(np.iinfo(dtype).min - lowest / scale)
    limits = np.iinfo(dtype)
    quantised = np.clip(np.round(value / scale) + zero, limits.min, limits.max).astype(dtype)
    parts = {"_quantized": quantised, "_scale": scale, "_zero_point": np.array(zero, dtype)}
    return [numpy_helper.from_array(np.asarray(part), name + end) for end, part in parts.items()]


def _product(index: int, bias: str) -> list:
    weight = f"onnx::MatMul_{index}"
    inputs = ["x_quantized", f"{weight}_quantized", "x_zero_point", f"{weight}_zero_point"]
    return [
        helper.make_node("MatMulInteger", inputs, [f"{index}.product"]),
        helper.make_node("Cast", [f"{index}.product"], [f"{index}.cast"]),
        helper.make_node("Mul", ["x_scale", f"{weight}_scale"], [f"{index}.scales"]),
        helper.make_node("Mul", [f"{index}.cast", f"{index}.scales"], [f"{index}.scaled"]),
        helper.make_node("Add", [bias, f"{index}.scaled"], [f"{index}.out"]),
    ]
