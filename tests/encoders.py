"""Tiny random encoders of every family, with real tokenizers: what the tests run instead of downloaded weights.

from encoders import FAMILIES, tiny_encoder, save_tiny
"""

import string
import warnings
from functools import cache
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
from transformers import AutoConfig, AutoModel, PreTrainedModel, PreTrainedTokenizerFast

with warnings.catch_warnings():  # its module compiles functions with torch.jit on import, which torch deprecates
    warnings.simplefilter("ignore", DeprecationWarning)
    import transformers.models.deberta_v2.modeling_deberta_v2  # noqa: F401

FAMILIES = ["bert", "roberta", "distilbert", "electra", "mpnet", "albert", "deberta-v2"]

SIZES = {"hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 64}
POSITIONS = {"max_position_embeddings": 512}
PADDED_POSITIONS = {"max_position_embeddings": 514, "pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2}
OWN = {
    "bert": POSITIONS,
    "roberta": {**PADDED_POSITIONS, "type_vocab_size": 1},
    "distilbert": {**POSITIONS, "dim": 32, "n_layers": 3, "n_heads": 4, "hidden_dim": 64},
    "electra": {**POSITIONS, "embedding_size": 16},
    "mpnet": PADDED_POSITIONS,
    "albert": {**POSITIONS, "embedding_size": 16, "num_hidden_groups": 1},
    # as DeBERTa-v3: positions only in the attention, whose table has a LayerNorm of its own
    "deberta-v2": {
        **POSITIONS,
        "relative_attention": True,
        "position_buckets": 16,
        "norm_rel_ebd": "layer_norm",
        "share_att_key": True,
        "pos_att_type": ["p2c", "c2p"],
        "position_biased_input": False,
        "type_vocab_size": 0,
    },
}
# DistilBERT's configuration has names of its own for the sizes
RENAMED = {
    "distilbert": {
        "hidden_size": "dim",
        "num_hidden_layers": "n_layers",
        "num_attention_heads": "n_heads",
        "intermediate_size": "hidden_dim",
    }
}

WORDS = (
    "the of and to in a is was for on by with as at from who what when where which how many did does were it that his "
    "her year city river king war first name born called people world great north south old new"
)


def tiny_encoder(family: str, seed: int = 0, **overrides: object) -> PreTrainedModel:
    """A random encoder in eval mode: width 32, 3 blocks, 4 heads. Same seed, same weights.

    overrides: entries of its Hugging Face configuration, under BERT's names, such as num_hidden_layers=4.
    """
    own, renamed = OWN[family], RENAMED.get(family, {})
    sizes = own if renamed else {**SIZES, **own}
    named = {renamed.get(key, key): value for key, value in overrides.items()}
    config = AutoConfig.for_model(family, **{"vocab_size": vocab_size(family), **sizes, **named})
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return AutoModel.from_config(config).eval()


def tiny_batch(model: PreTrainedModel, batch: int = 2, tokens: int = 7, seed: int = 0) -> dict[str, torch.Tensor]:
    """input_ids and attention_mask, (batch, token); the last row ends in two padding tokens."""
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(5, model.config.vocab_size, (batch, tokens), generator=generator)
    mask = torch.ones(batch, tokens, dtype=torch.long)
    ids[-1, -2:], mask[-1, -2:] = model.config.pad_token_id, 0
    return {"input_ids": ids, "attention_mask": mask}


def save_tiny(directory: Path | str, family: str, seed: int = 0, **overrides: object) -> Path:
    """Writes configuration, weights and tokenizer, so that AutoModel and AutoTokenizer load `directory`."""
    directory = Path(directory)
    tiny_encoder(family, seed, **overrides).save_pretrained(directory)
    tiny_tokenizer(family).save_pretrained(directory)
    return directory


def tiny_tokenizer(family: str) -> PreTrainedTokenizerFast:
    """A fast tokenizer with real offsets: byte-level BPE for RoBERTa, lower-casing WordPiece for the others."""
    start, pad, end, unknown, mask = special = _special(family)
    tokenizer = _byte_pairs(special) if family == "roberta" else _word_pieces(special)
    double = f"{end} {end}" if start == "<s>" else f"{end}"
    second = 0 if start == "<s>" else 1  # these families tell the texts apart by the separator alone
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{start} $A {end}",
        pair=f"{start} $A {double} $B:{second} {end}:{second}",
        special_tokens=[(token, tokenizer.token_to_id(token)) for token in (start, end)],
    )
    inputs = ["input_ids", "attention_mask"]
    if family not in {"roberta", "mpnet", "distilbert"}:
        inputs.insert(1, "token_type_ids")
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        cls_token=start,
        bos_token=start,
        sep_token=end,
        eos_token=end,
        pad_token=pad,
        unk_token=unknown,
        mask_token=mask,
        model_max_length=512,
        model_input_names=inputs,
    )


@cache
def plain_tokenizer(family: str = "bert") -> Tokenizer:
    """`tiny_tokenizer` as the program reads it: it neither truncates nor pads. One for all tests."""
    found = tiny_tokenizer(family).backend_tokenizer
    found.no_truncation()
    found.no_padding()
    return found


def vocab_size(family: str) -> int:
    """The size of the vocabulary of `tiny_tokenizer(family)`."""
    return len(tiny_tokenizer(family))


def _special(family: str) -> tuple[str, str, str, str, str]:
    """Start, padding, end, unknown and mask tokens."""
    if family in {"roberta", "mpnet"}:
        return "<s>", "<pad>", "</s>", "<unk>", "<mask>"
    return "[CLS]", "[PAD]", "[SEP]", "[UNK]", "[MASK]"


def _word_pieces(special: tuple[str, str, str, str, str]) -> Tokenizer:
    start, pad, end, unknown, mask = special
    order = [start, pad, end, unknown, mask] if start == "<s>" else [pad, unknown, start, end, mask]
    letters = string.ascii_lowercase + string.digits
    pieces = [*order, *letters, *string.punctuation, *(f"##{letter}" for letter in letters), "##ing", "##ed", "##er"]
    vocabulary = {piece: index for index, piece in enumerate(dict.fromkeys([*pieces, *WORDS.split()]))}
    tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token=unknown))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece(prefix="##")
    return tokenizer


def _byte_pairs(special: tuple[str, str, str, str, str]) -> Tokenizer:
    pairs = [("Ġ", "t"), ("h", "e"), ("Ġ", "a"), ("i", "n"), ("Ġt", "he"), ("Ġ", "in"), ("o", "n"), ("e", "r")]
    symbols = [*special, *sorted(pre_tokenizers.ByteLevel.alphabet()), *(left + right for left, right in pairs)]
    vocabulary = {symbol: index for index, symbol in enumerate(symbols)}
    tokenizer = Tokenizer(models.BPE(vocabulary, pairs))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer
