"""The shapes of well-known encoders, without weights and without a network: for counting and planning."""

from pathlib import Path
from typing import Any

import torch
from huggingface_hub.errors import StrictDataclassError
from transformers import AutoConfig, AutoModel, PreTrainedConfig, PreTrainedModel

from bertvision.errors import UserError, nearest


def _sizes(width: int, layers: int, heads: int, inner: int | None = None) -> dict[str, int]:
    """Width, blocks, attention heads and feed-forward width under the names that most configurations use."""
    sizes = {"hidden_size": width, "num_hidden_layers": layers, "num_attention_heads": heads}
    return {**sizes, "intermediate_size": inner or 4 * width}


def _bert(vocabulary: int, *sizes: int) -> dict[str, Any]:
    return {"model_type": "bert", "vocab_size": vocabulary, **_sizes(*sizes)}


def _albert(version: int, *sizes: int) -> dict[str, Any]:
    """Version 1 trains with dropout and the exact GELU, version 2 without and with its tanh form; sizes are equal."""
    dropout = 0.1 if version == 1 else 0.0
    rates = {"hidden_dropout_prob": dropout, "attention_probs_dropout_prob": dropout}
    activation = "gelu" if version == 1 else "gelu_new"
    shape = {"vocab_size": 30000, "embedding_size": 128, "hidden_act": activation, **rates}
    return {"model_type": "albert", **shape, **_sizes(*sizes)}


def _distilbert(vocabulary: int) -> dict[str, Any]:
    return {
        "model_type": "distilbert",
        "vocab_size": vocabulary,
        "dim": 768,
        "n_layers": 6,
        "n_heads": 12,
        "hidden_dim": 3072,
    }


def _roberta(model_type: str, vocabulary: int, *sizes: int) -> dict[str, Any]:
    shape = {"vocab_size": vocabulary, "max_position_embeddings": 514, "type_vocab_size": 1, "layer_norm_eps": 1e-5}
    return {"model_type": model_type, **shape, **_sizes(*sizes)}


def _electra(embedding: int, *sizes: int) -> dict[str, Any]:
    return {"model_type": "electra", "vocab_size": 30522, "embedding_size": embedding, **_sizes(*sizes)}


def _mpnet(*sizes: int) -> dict[str, Any]:
    shape = {"vocab_size": 30527, "max_position_embeddings": 514, "layer_norm_eps": 1e-5}
    return {"model_type": "mpnet", **shape, **_sizes(*sizes)}


def _deberta_v3(*sizes: int) -> dict[str, Any]:
    attention = {
        "relative_attention": True,
        "position_buckets": 256,
        "norm_rel_ebd": "layer_norm",
        "share_att_key": True,
    }
    positions = {"pos_att_type": ["p2c", "c2p"], "position_biased_input": False, "type_vocab_size": 0}
    return {"model_type": "deberta-v2", "vocab_size": 128100, **attention, **positions, **_sizes(*sizes)}


BASE, LARGE = (768, 12, 12), (1024, 24, 16)
CASED, UNCASED, MULTILINGUAL = 28996, 30522, 119547

SHAPES: dict[str, dict[str, Any]] = {
    "bert-base-uncased": _bert(UNCASED, *BASE),
    "bert-base-cased": _bert(CASED, *BASE),
    "bert-large-uncased": _bert(UNCASED, *LARGE),
    "bert-large-cased": _bert(CASED, *LARGE),
    "bert-large-uncased-whole-word-masking": _bert(UNCASED, *LARGE),
    "bert-large-cased-whole-word-masking": _bert(CASED, *LARGE),
    "bert-base-multilingual-cased": _bert(MULTILINGUAL, *BASE),
    "bert-base-multilingual-uncased": _bert(105879, *BASE),
    "bert-tiny": _bert(UNCASED, 128, 2, 2),
    "bert-mini": _bert(UNCASED, 256, 4, 4),
    "bert-small": _bert(UNCASED, 512, 4, 8),
    "bert-medium": _bert(UNCASED, 512, 8, 8),
    "tinybert_general_4l_312d": _bert(UNCASED, 312, 4, 12, 1200),
    "tinybert_general_6l_768d": _bert(UNCASED, 768, 6, 12),
    "all-minilm-l6-v2": _bert(UNCASED, 384, 6, 12),
    "all-minilm-l12-v2": _bert(UNCASED, 384, 12, 12),
    "ms-marco-minilm-l-6-v2": _bert(UNCASED, 384, 6, 12),
    "ms-marco-minilm-l-12-v2": _bert(UNCASED, 384, 12, 12),
    "minilm-l12-h384-uncased": _bert(UNCASED, 384, 12, 12),
    "albert-base-v1": _albert(1, *BASE),
    "albert-large-v1": _albert(1, *LARGE),
    "albert-xlarge-v1": _albert(1, 2048, 24, 16),
    "albert-xxlarge-v1": _albert(1, 4096, 12, 64),
    "albert-base-v2": _albert(2, *BASE),
    "albert-large-v2": _albert(2, *LARGE),
    "albert-xlarge-v2": _albert(2, 2048, 24, 16),
    "albert-xxlarge-v2": _albert(2, 4096, 12, 64),
    "distilbert-base-uncased": _distilbert(UNCASED),
    "distilbert-base-cased": _distilbert(CASED),
    "distilbert-base-multilingual-cased": _distilbert(MULTILINGUAL),
    "roberta-base": _roberta("roberta", 50265, *BASE),
    "roberta-large": _roberta("roberta", 50265, *LARGE),
    "distilroberta-base": _roberta("roberta", 50265, 768, 6, 12),
    "xlm-roberta-base": _roberta("xlm-roberta", 250002, *BASE),
    "xlm-roberta-large": _roberta("xlm-roberta", 250002, *LARGE),
    "electra-small-discriminator": _electra(128, 256, 12, 4),
    "electra-base-discriminator": _electra(768, *BASE),
    "electra-large-discriminator": _electra(1024, *LARGE),
    "mpnet-base": _mpnet(*BASE),
    "deberta-v3-xsmall": _deberta_v3(384, 12, 6),
    "deberta-v3-small": _deberta_v3(768, 6, 12),
    "deberta-v3-base": _deberta_v3(*BASE),
    "deberta-v3-large": _deberta_v3(*LARGE),
}
# Short names, and well-known tunings of an encoder above
ALIASES = {
    "minilm": "all-minilm-l6-v2",
    "marco": "ms-marco-minilm-l-12-v2",
    "ms-marco-minilm-l6-v2": "ms-marco-minilm-l-6-v2",
    "ms-marco-minilm-l12-v2": "ms-marco-minilm-l-12-v2",
    "all-mpnet-base-v2": "mpnet-base",
    "bert-large-uncased-whole-word-masking-finetuned-squad": "bert-large-uncased",
    "bert-large-cased-whole-word-masking-finetuned-squad": "bert-large-cased",
    "distilbert-base-uncased-distilled-squad": "distilbert-base-uncased",
    "distilbert-base-cased-distilled-squad": "distilbert-base-cased",
    "roberta-base-squad2": "roberta-base",
    "minilm-uncased-squad2": "minilm-l12-h384-uncased",
}


def configuration(name_or_directory: str | Path) -> PreTrainedConfig:
    """The Hugging Face configuration of a local directory, or of a known name with or without its organisation."""
    name = str(name_or_directory).rpartition("/")[2].lower()
    name = ALIASES.get(name, name)
    directory = Path(name_or_directory)
    if directory.is_dir() and (name not in SHAPES or (directory / "config.json").is_file()):
        return _from_directory(directory)
    if name not in SHAPES:
        hint = nearest(name, {*SHAPES, *ALIASES})
        raise UserError(
            f"{name_or_directory}: neither a directory with config.json nor an encoder of known shape; {hint}"
        )
    return AutoConfig.for_model(**SHAPES[name])


def empty_model(name_or_directory: str | Path) -> PreTrainedModel:
    """The encoder without its weights: every tensor is on the meta device and takes no memory."""
    config = configuration(name_or_directory)
    with torch.device("meta"):
        try:
            return AutoModel.from_config(config)
        except (ValueError, TypeError, RuntimeError) as error:
            raise UserError(
                f"{name_or_directory}: transformers cannot build this configuration: {_line(error)}"
            ) from None


def _from_directory(directory: Path) -> PreTrainedConfig:
    file = directory / "config.json"
    if not file.is_file():
        raise UserError(
            f"{directory}: there is no config.json in it; name a directory that holds a Hugging Face encoder"
        )
    try:
        return AutoConfig.from_pretrained(directory, local_files_only=True, trust_remote_code=False)
    except (OSError, ValueError, TypeError, KeyError, StrictDataclassError) as error:
        raise UserError(f"{file}: not the configuration of a Hugging Face encoder: {_line(error)}") from None


def _line(error: Exception) -> str:
    """The beginning of a message of several lines, as one."""
    return " ".join(str(error).split())[:200]
