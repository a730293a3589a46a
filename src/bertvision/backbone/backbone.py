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
from transformers import PreTrainedModel

from bertvision.backbone.loading import fetch_again, find_encoder, load_model, load_tokenizer
from bertvision.backbone.states import Reads, States, numbered
from bertvision.data.batches import Batch, by_length
from bertvision.errors import UserError

# Tokens per thread in one pass of the encoder where nothing trains: few enough for activations to stay in the cache.
SLICE = 1024

# Configuration entries that change an encoder's states but not its weights, with their defaults. Never the whole
# configuration: every version of transformers adds entries, which would invalidate all stores.
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


class Backbone(nn.Module):
    """An encoder and its tokenizer. Calling it on a batch gives the hidden states of its layers.

    layers: L, embedding output included. width: H. pad: the id of padding. longest: most tokens in a window.
    """

    def __init__(self, model: PreTrainedModel, tokenizer: Tokenizer, name: str) -> None:
        super().__init__()
        self.model = model
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
    def load(cls, name: str) -> "Backbone":
        """Loads an encoder in eval mode, fp32.

        name: a local directory, an alias for weights in a package (`minilm`), or a hub name.
        """
        directory = find_encoder(name)
        try:
            return cls._read(directory, name)
        except UserError as error:
            # The weights of an alias are known to be good: if they cannot be read, the copy is damaged.
            return cls._read(fetch_again(name, directory, error), name)

    @classmethod
    def _read(cls, directory: Path, name: str) -> "Backbone":
        model = load_model(directory, name)
        return cls(model, load_tokenizer(directory, name, model.config.vocab_size), name).eval()

    @property
    def fingerprint(self) -> str:
        """sha256 of the current weights, of the configuration entries in UNSEEN, and of the tokenizer."""
        digest = hashlib.sha256(self.tokenizer.to_str().encode())
        said = {key: getattr(self.model.config, key, None) for key in UNSEEN}
        unseen = {key: value for key, value in said.items() if value not in (None, UNSEEN[key])}
        digest.update(json.dumps(unseen, sort_keys=True).encode())
        for key, tensor in sorted(self.model.state_dict().items()):
            digest.update(f"{key} {tuple(tensor.shape)} {tensor.dtype}".encode())
            digest.update(tensor.detach().cpu().contiguous().flatten().numpy())
        return digest.hexdigest()

    def forward(self, batch: Batch, reads: Reads = "all") -> States:
        """States of a batch: all layers, the last one only, or those with the given numbers, (B, L, S, H)."""
        numbers = None if reads == "all" else numbered(reads, self.layers)
        learning = self.training or torch.is_grad_enabled()
        if learning or not batch.ids.is_cpu or torch.compiler.is_compiling() or batch.ids.numel() <= _slice():
            return States(torch.stack(self.encode(batch, reads), dim=1), batch.mask, numbers)
        return States(self._in_slices(batch, reads), batch.mask, numbers)

    def encode(self, batch: Batch, reads: Reads = "all") -> list[Tensor]:
        """The same states from one pass of the encoder: a (B, S, H) for each layer, in rising order."""
        inputs = {"input_ids": batch.ids, "output_hidden_states": reads != "last"}
        # Without padding no mask is needed, and attention runs faster; an exported graph must work for either.
        if torch.compiler.is_exporting() or not bool(batch.mask.all()):
            inputs["attention_mask"] = batch.mask.long()
        if self._has_types:
            inputs["token_type_ids"] = batch.types
        output = self.model(**inputs)
        if reads == "last":
            return [output.last_hidden_state]
        seen = [*output.hidden_states[:-1], output.last_hidden_state]
        return [seen[number] for number in numbered(reads, self.layers)]

    def _in_slices(self, batch: Batch, reads: Reads) -> Tensor:
        """(B, L, S, H) from several passes of the encoder, rows of similar length together; padding is zero."""
        lengths = batch.mask.sum(dim=1).numpy()
        states = torch.empty(0)
        for rows in by_length(lengths, _slice()):
            longest = int(lengths[rows].max())
            layers = self.encode(_part(batch, rows, longest), reads)
            if not states.numel():
                states = layers[0].new_empty(len(lengths), len(layers), batch.ids.shape[1], layers[0].shape[-1])
            for place, row in enumerate(rows.tolist()):
                for layer, found in enumerate(layers):
                    states[row, layer, :longest] = found[place]
                states[row, :, longest:] = 0
        return states


def _slice() -> int:
    return SLICE * torch.get_num_threads()


def _part(batch: Batch, rows: NDArray[np.int64], longest: int) -> Batch:
    """Some rows of a batch, cut to `longest` tokens."""
    chosen = torch.from_numpy(rows)
    ids, types, mask = (each[chosen, :longest] for each in (batch.ids, batch.types, batch.mask))
    return Batch(batch.index[rows], ids, types, mask, batch.targets[chosen])


def _positions(model: PreTrainedModel) -> int:
    """Most tokens the encoder has positions for. Tables with a padding row, as RoBERTa's, count from behind it."""
    table = int(getattr(model.config, "max_position_embeddings", 0) or 1 << 30)
    for name, module in model.named_modules():
        if name.endswith("position_embeddings") and isinstance(module, nn.Embedding) and module.padding_idx is not None:
            return table - module.padding_idx - 1
    return table
