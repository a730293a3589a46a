"""Export of a reader as one ONNX file: encoder, adapters and heads, for any batch size and length."""

import json
import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from bertvision.backbone.backbone import Backbone
from bertvision.backbone.states import together
from bertvision.data.batches import Batch
from bertvision.errors import UserError
from bertvision.files import holding, replacing, write_json, write_text
from bertvision.serve.engines import TorchEngine, blend
from bertvision.serve.onnx_engine import NOTES, need
from bertvision.serve.reader import Reader
from bertvision.serve.reader_dir import (
    CARD,
    CONFIG,
    GRAPH,
    TOKENIZER,
    config_digest,
    encoder_tensors,
    head_tensors,
    stored_digest,
    weights_digest,
    write_digests,
)

OPSET = 20  # the first that has GELU as one operation
LARGEST = 2_000_000_000  # bytes; a file of this format cannot be larger


class ReaderModule(nn.Module):
    """The encoder and the ensembles of all tasks as one function of tensors."""

    def __init__(self, engine: TorchEngine) -> None:
        super().__init__()
        self.backbone, self.tasks = engine.backbone, engine.tasks
        names = [(name, key) for name, task in self.tasks.items() for key in task.heads]
        self.heads = nn.ModuleList(engine.heads[name][key] for name, key in names)

    def forward(self, ids: Tensor, types: Tensor, mask: Tensor) -> tuple[Tensor, ...]:
        """ids, types: (B, S) int64; mask: (B, S) bool. Each task's logits, (B, S, 2) for spans, else (B, outputs)."""
        reads = together((head.reads for head in self.heads), self.backbone.layers)  # type: ignore[misc]
        batch = Batch(np.arange(0), ids, types, mask, targets=ids)
        states = self.backbone(batch, reads)
        members = iter([head.logits(states) for head in self.heads])  # type: ignore[operator]
        return tuple(blend(task, [next(members) for _ in task.heads], batch) for task in self.tasks.values())


def export(reader: Reader, out: Path, *, int8: bool = False) -> Path:
    """Writes a directory for Reader.from_pretrained(out, engine="onnx"); the path of its graph.

    int8: weights as 8-bit integers, about a quarter of the size; answers may change a little.
    """
    if not isinstance(reader.engine, TorchEngine):
        raise UserError('export: this reader is ONNX already; load the one it was made from with engine="torch"')
    if apart := [name for name, one in reader.config.tasks.items() if one.windows.pairs == "apart"]:
        raise UserError(f"export: {apart[0]} encodes pairs of texts apart, which a graph cannot; keep torch")
    for module in ("onnx", "onnxscript", "onnxruntime"):
        need(module)
    whole = ReaderModule(reader.engine).eval()
    size = sum(tensor.numel() * tensor.element_size() for tensor in whole.state_dict().values())
    if size > LARGEST:
        raise UserError(f"export: {size / 1e9:.1f} GB of weights do not fit into one ONNX file (2 GB); keep torch")
    config, engine = reader.config, reader.engine
    weights = weights_digest(head_tensors(engine.heads), encoder_tensors(engine.backbone, config))
    digests = {"config": config_digest(config.to_json()), "weights": weights}  # of what the graph is made from
    if stored_digest(out, config) not in ("", weights):
        raise UserError(f"{out}: holds another reader; choose another directory for the exported one")
    with holding(out):
        (out / CONFIG).unlink(missing_ok=True)  # removed first, written last: a half-written directory is not a reader
        with replacing(out / GRAPH, durable=True) as scratch:
            _write_graph(whole, scratch)
            if int8:
                _quantise(scratch)
            _add_notes(scratch, {"int8": int8, "pad": engine.pad, "longest": engine.longest, **digests})
        with replacing(out / TOKENIZER, durable=True) as scratch:
            engine.tokenizer.save(str(scratch))
        write_digests(out)
        write_text(out / CARD, reader.card)
        write_json(out / CONFIG, config.to_json(), durable=True)
    return out / GRAPH


def _write_graph(whole: ReaderModule, path: Path) -> None:
    mask = torch.arange(7) < torch.tensor([[7], [5]])  # (2, 7): a batch with padding
    ids, types = mask.long() * 3, torch.zeros(2, 7, dtype=torch.int64)
    free = dict.fromkeys((0, 1), torch.export.Dim.DYNAMIC)  # both the batch and its length
    with _quiet(), torch.no_grad(), _plain_attention(whole.backbone):
        program = torch.onnx.export(
            whole,
            (ids, types, mask),
            dynamo=True,
            opset_version=OPSET,
            input_names=["ids", "types", "mask"],
            output_names=list(whole.tasks),
            dynamic_shapes=(free, free, free),
            verbose=False,
        )
        assert program is not None  # it is None only without dynamo
        program.save(str(path), external_data=False)


def _quantise(path: Path) -> None:
    """Weights of matrix products and tables as int8; activations are quantised while running."""
    from onnxruntime.quantization import QuantType, quantize_dynamic

    with _quiet():
        quantize_dynamic(
            path, path, op_types_to_quantize=["MatMul", "Gemm", "Gather"], weight_type=QuantType.QInt8, per_channel=True
        )


def _add_notes(path: Path, notes: dict[str, int | str]) -> None:
    import onnx

    model = onnx.load(path)
    onnx.helper.set_model_props(model, {NOTES: json.dumps(notes)})
    onnx.save(model, path)


@contextmanager
def _plain_attention(backbone: Backbone) -> Iterator[None]:
    """Attention as products, a sum and a softmax, which ONNX runtimes fuse themselves.

    Torch's fused function, taken apart for a graph, also guards against rows without any token; there are none.
    """
    model = backbone.model
    before = model.config._attn_implementation
    model.set_attn_implementation("eager")
    try:
        yield
    finally:
        model.set_attn_implementation(before)


@contextmanager
def _quiet() -> Iterator[None]:
    """Without the warnings and log lines of exporter and quantiser."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)
