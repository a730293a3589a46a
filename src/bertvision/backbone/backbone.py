"""Backbone: batch -> States, through a transformers encoder."""

import hashlib
import inspect
import json
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from tokenizers import Tokenizer
from torch import Tensor, nn
from transformers import PreTrainedConfig, PreTrainedModel

from bertvision.backbone.anatomy import (
    are_separable,
    blocks,
    has_trained_pooler,
    keep_blocks,
    named_blocks,
    only_blocks,
    pooler,
    watched,
)
from bertvision.backbone.loading import fetch_again, find_encoder, load_model, load_tokenizer
from bertvision.backbone.states import POOLED, Positions, Reads, States, numbered
from bertvision.data.batches import Batch, by_length
from bertvision.devices import find_device
from bertvision.errors import UserError
from bertvision.runtime import CPU, Runtime

# Tokens per thread in one pass of the encoder where nothing trains: few enough for activations to stay in the cache.
SLICE = 1024

# Configuration entries that change an encoder's states but not its weights, with their defaults.
UNSEEN: dict[str, object] = {
    "model_type": None,
    "num_hidden_layers": None,  # ALBERT's share their weights
    "num_attention_heads": None,
    "hidden_act": None,
    "activation": None,  # DistilBERT's name for it
    "layer_norm_eps": None,
    "pad_token_id": None,  # RoBERTa and MPNet count positions from it
    "position_embedding_type": "absolute",
    "is_decoder": False,
    "relative_attention": False,  # DeBERTa, like those below
    "max_relative_positions": None,
    "position_buckets": None,
    "pos_att_type": None,
    "conv_act": None,
}
# Any other entry that its kind of encoder knows counts where it differs from the default (ModernBERT varies
# local_attention, layer_types, norm_eps, hidden_activation, rope_parameters, ...): entries that a new version of
# transformers adds have their defaults and invalidate no store. Only these are known not to matter: they show in the
# shapes of the weights, act in training alone, or belong to parts that are not used.
IRRELEVANT = {
    *("hidden_size", "intermediate_size", "vocab_size", "type_vocab_size", "max_position_embeddings", "embedding_size"),
    *("dim", "hidden_dim", "n_layers", "n_heads", "num_labels", "id2label", "label2id", "problem_type"),
    *("architectures", "dtype", "torch_dtype", "transformers_version", "use_cache", "gradient_checkpointing"),
    *("initializer_range", "initializer_factor", "initializer_cutoff_factor", "tie_word_embeddings", "tie_weights_"),
    *("return_dict", "output_hidden_states", "output_attentions", "is_encoder_decoder", "finetuning_task"),
    *("bos_token_id", "eos_token_id", "cls_token_id", "sep_token_id", "mask_token_id", "unk_token_id"),
    *("decoder_bias", "classifier_bias", "classifier_pooling", "classifier_activation", "sparse_prediction"),
    *("sparse_pred_ignore_index", "deterministic_flash_attn", "reference_compile", "name_or_path"),
    *("pooler_type", "pooler_hidden_size", "pooler_hidden_act", "pooler_fc_size"),
}


class Backbone(nn.Module):
    """An encoder and its tokenizer. Calling it on a batch gives the hidden states of its layers.

    layers: L, embedding output included. width: H. pad: the id of padding. longest: most tokens in a window. runtime:
    where it runs; batches must lie there too.
    compressed: tensors and header of the file that its weights stand for, if they are a compressed tuning.
    """

    compressed: tuple[dict[str, Tensor], dict[str, str]] | None = None

    def __init__(self, model: PreTrainedModel, tokenizer: Tokenizer, name: str, runtime: Runtime = CPU) -> None:
        super().__init__()
        self.model, self.runtime = runtime.to(model), runtime
        self.tokenizer = tokenizer
        self.name = name
        config = model.config
        self.layers = int(config.num_hidden_layers) + 1
        self.width = int(config.hidden_size)
        self.pad = int(getattr(config, "pad_token_id", 0) or 0)
        self.longest = _positions(model)
        self._has_types = (
            "token_type_ids" in inspect.signature(model.forward).parameters
            and getattr(config, "type_vocab_size", 0) > 1
        )

    @classmethod
    def load(cls, name: str, device: str | Runtime = "cpu") -> "Backbone":
        """Loads an encoder in eval mode, fp32.

        name: a local directory, an alias for weights in a package (`minilm`), or a hub name. device: such as "cuda";
        "auto" is a GPU, if there is one.
        """
        runtime = device if isinstance(device, Runtime) else Runtime(find_device(device, "device"))
        directory = find_encoder(name)
        try:
            return cls._read(directory, name, runtime)
        except UserError as error:
            # The weights of an alias are known to be good: if they cannot be read, the copy is damaged.
            return cls._read(fetch_again(name, directory, error), name, runtime)

    @classmethod
    def _read(cls, directory: Path, name: str, runtime: Runtime) -> "Backbone":
        model = load_model(directory, name)
        return cls(model, load_tokenizer(directory, name, model.config.vocab_size), name, runtime).eval()

    @property
    def fingerprint(self) -> str:
        """sha256 of the current weights, of what the configuration says beyond them, and of the tokenizer."""
        digest = hashlib.sha256(self.tokenizer.to_str().encode())
        entries = {key: getattr(self.model.config, key, None) for key in UNSEEN}
        unseen = {key: value for key, value in entries.items() if value not in (None, UNSEEN[key])}
        unseen |= unusual(self.model.config)
        digest.update(json.dumps(unseen, sort_keys=True, default=str).encode())
        for key, tensor in sorted(self.model.state_dict().items()):
            digest.update(f"{key} {tuple(tensor.shape)} {tensor.dtype}".encode())
            digest.update(tensor.detach().cpu().contiguous().flatten().numpy())
        return digest.hexdigest()

    def forward(self, batch: Batch, reads: Reads = "all", positions: Positions = "all") -> States:
        """States of a batch: all layers, the last one only, or those with the given numbers, (B, L, S, H).

        positions: all tokens, or [CLS] alone, (B, L, 1, H); then no more than that is kept of a slice. Of pairs that
        are encoded apart the mean over each text, (B, L, 2, H).
        """
        if batch.second is not None:
            return self._apart(batch, batch.second, reads)
        numbers = None if reads == "all" else numbered(reads, self.layers)
        learning = self.training or torch.is_grad_enabled()
        mask = batch.mask if positions == "all" else batch.mask[:, :1]
        tokens = mask.shape[1]
        if learning or not batch.ids.is_cpu or torch.compiler.is_compiling() or batch.ids.numel() <= _slice():
            return States(torch.stack([layer[:, :tokens] for layer in self.encode(batch, reads)], dim=1), mask, numbers)
        return States(self._in_slices(batch, reads, tokens), mask, numbers)

    def _apart(self, batch: Batch, second: Tensor, reads: Reads) -> States:
        """The mean states of both texts of each pair, (B, L, 2, H); every text is a row of its own."""
        begin = torch.cat([torch.zeros_like(second), second])  # (2 B,): all first texts, then all second ones
        lengths = torch.cat([second, batch.mask.sum(dim=1)]) - begin
        column = torch.arange(int(lengths.max()), device=second.device)
        mask = column < lengths[:, None]  # (2 B, S)
        place = torch.where(mask, begin[:, None] + column, 0)
        ids, types = (each.repeat(2, 1).gather(1, place) for each in (batch.ids, batch.types))
        ids, types = torch.where(mask, ids, self.pad), torch.where(mask, types, 0)
        texts = Batch(np.tile(batch.index, 2), ids, types, mask, torch.cat([batch.targets, batch.targets]))
        states = self(texts, reads)
        real = mask[:, None, :, None]
        means = states.layers.masked_fill(~real, 0).sum(dim=2) / real.sum(dim=2)  # (2 B, L, H)
        both = torch.stack(means.chunk(2), dim=2)  # (B, L, 2, H)
        return States(both, batch.mask.new_ones(len(second), 2), states.numbers)

    def encode(self, batch: Batch, reads: Reads = "all") -> list[Tensor]:
        """The same states from one pass of the encoder: a (B, S, H) for each layer, in rising order.

        Blocks above the highest of these layers do not run, but in ALBERT, and where the encoder is compiled.
        """
        numbers = numbered(reads, self.layers)
        if POOLED not in numbers and numbers[-1] < self.layers - 1 and self._can_stop:
            return self.stopped(batch, numbers)
        top = (POOLED, self.layers - 1)  # no inner layer has to be kept for these
        output = self.model(**self._inputs(batch), output_hidden_states=not set(numbers) <= set(top))
        last = output.last_hidden_state
        seen = dict(enumerate((output.hidden_states or ())[:-1])) | {self.layers - 1: last}
        if POOLED in numbers:
            self.check_pooler()
            pooled = output.pooler_output.unsqueeze(1)  # (B, 1, H)
            seen[POOLED] = torch.nn.functional.pad(pooled, (0, 0, 0, last.shape[1] - 1))  # (B, S, H), zero but at [CLS]
        return [seen[number] for number in numbers]

    def stopped(self, batch: Batch, numbers: tuple[int, ...]) -> list[Tensor]:
        """The states of these layers, (B, S, H) each, from the blocks up to the highest of them alone."""
        all_blocks, needed = blocks(self.model), max(1, numbers[-1])
        if len(all_blocks) == needed:  # cut to that depth: an exported graph cannot be made of changing parts
            with watched(all_blocks) as seen:
                self.model(**self._inputs(batch))
        else:
            with only_blocks(self.model, slice(needed)) as kept, watched(kept) as seen:
                self.model(**self._inputs(batch))
        return [seen[number] for number in numbers]

    def cut(self, top: int) -> None:
        """Drops the blocks above layer `top`, in place, and with them what a compressed tuning holds of them.

        The layers keep their numbers. The pooler, which is above them all, trains no more. Nothing happens where blocks
        cannot be separated, as in ALBERT.
        """
        if top >= len(blocks(self.model)) or not are_separable(self.model):
            return
        readout = pooler(self.model)
        parts_above = [block for _, block in named_blocks(self.model)[max(1, top) :]] + ([readout] if readout else [])
        dropped = [
            f"{name}." for name, part in self.model.named_modules() if any(part is above for above in parts_above)
        ]
        if readout:
            readout.requires_grad_(False)
        keep_blocks(self.model, slice(max(1, top)))
        self.model.cut_to = max(1, top)  # type: ignore[assignment]
        if self.compressed:
            tensors, header = self.compressed
            kept = {name: tensor for name, tensor in tensors.items() if not name.startswith(tuple(dropped))}
            self.compressed = kept, header

    @property
    def _can_stop(self) -> bool:
        compiled = self.model._compiled_call_impl is not None  # it would compile anew for every part
        return not compiled and are_separable(self.model)

    def _inputs(self, batch: Batch) -> dict[str, Tensor]:
        inputs = {"input_ids": batch.ids}
        # Without padding no mask is needed, and attention runs faster; an exported graph must work for either.
        if torch.compiler.is_exporting() or not (bool(batch.mask.all()) if batch.full is None else batch.full):
            inputs["attention_mask"] = batch.mask.long()
        if self._has_types:
            inputs["token_type_ids"] = batch.types
        return inputs

    def check_pooler(self, where: str = "head.pooled") -> None:
        """UserError, naming `where`, unless the encoder has a trained pooler."""
        if not has_trained_pooler(self.model):
            raise UserError(f"{where}: {self.name} has no trained pooler; leave it out, or choose an encoder with one")

    def check_length(self, max_length: int) -> None:
        """UserError if windows may be longer than the encoder has positions for."""
        if max_length > self.longest:
            room = f"more than {self.name} has positions for ({self.longest})"
            raise UserError(f"data.max_length: {max_length} is {room}")

    def _in_slices(self, batch: Batch, reads: Reads, tokens: int) -> Tensor:
        """(B, L, tokens, H) from several passes of the encoder, rows of similar length together; padding is zero."""
        lengths = batch.mask.sum(dim=1).numpy()
        states = torch.empty(0)
        for rows in by_length(lengths, _slice()):
            longest = int(lengths[rows].max())
            layers = self.encode(_part(batch, rows, longest), reads)
            if not states.numel():
                states = layers[0].new_empty(len(lengths), len(layers), tokens, layers[0].shape[-1])
            for index, row in enumerate(rows.tolist()):
                for layer, layer_states in enumerate(layers):
                    states[row, layer, :longest] = layer_states[index, :tokens]
                states[row, :, longest:] = 0
        return states


def unusual(config: PreTrainedConfig) -> dict[str, object]:
    """Entries of a configuration, beside those in UNSEEN, that may change the states; see IRRELEVANT."""
    entries, defaults = config.to_dict(), type(config)().to_dict()
    relevant = {key for key in defaults if not ("dropout" in key or key.startswith("_"))} - UNSEEN.keys() - IRRELEVANT
    return {key: entries.get(key) for key in relevant if entries.get(key) != defaults[key]}


def _slice() -> int:
    return SLICE * torch.get_num_threads()


def _part(batch: Batch, rows: NDArray[np.int64], longest: int) -> Batch:
    """Some rows of a batch, cut to `longest` tokens."""
    indices = torch.from_numpy(rows)
    ids, types, mask = (array[indices, :longest] for array in (batch.ids, batch.types, batch.mask))
    return Batch(batch.index[rows], ids, types, mask, batch.targets[indices])


def _positions(model: PreTrainedModel) -> int:
    """Most tokens the encoder has positions for. Tables with a padding row, as RoBERTa's, count from behind it."""
    table = int(getattr(model.config, "max_position_embeddings", 0) or 1 << 30)
    for name, module in model.named_modules():
        if name.endswith("position_embeddings") and isinstance(module, nn.Embedding) and module.padding_idx is not None:
            return table - module.padding_idx - 1
    return table
