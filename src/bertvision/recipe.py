"""What can be asked for: a recipe is TOML read into frozen dataclasses. This file is the only place where an
option is declared, explained and defaulted; the string under a field is its documentation (docs/recipe.md)."""

import ast
import dataclasses
import inspect
import json
import textwrap
import tomllib
import types
import typing
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin

from bertvision.errors import UserError, nearest


@dataclass(frozen=True, slots=True)
class Between:
    """A bound on a number, for Annotated fields: low <= value <= high."""

    low: float
    high: float = float("inf")

    def __str__(self) -> str:
        return f"at least {self.low:g}" if self.high == float("inf") else f"between {self.low:g} and {self.high:g}"


Share = Annotated[float, Between(0, 1)]
Positive = Annotated[int, Between(1)]
NonNegative = Annotated[float, Between(0)]


@dataclass(frozen=True)
class BackboneRecipe:
    name: str = "minilm"
    """The encoder: an alias (`minilm`), a local directory with config.json and *.safetensors, or a hub name."""


@dataclass(frozen=True)
class DataRecipe:
    train: str = "sample:train"
    """Training questions: `sample:train[:questions]`, a SQuAD JSON file, or `squad_v2` (hub). Join several with `+`."""
    tune: str = ""
    """Where thresholds and the like are chosen. Empty: a share of the training articles is split off."""
    test: str = "sample:test"
    """What is reported; nothing is ever chosen on it."""
    tune_share: Annotated[float, Between(0.01, 0.9)] = 0.1
    """The share of training questions split off, by whole articles, where `tune` is empty."""
    fraction: Annotated[float, Between(0.0001, 1)] = 1.0
    """Use only this share of the training questions. Smaller shares are subsets of larger ones."""
    max_length: Annotated[int, Between(16)] = 384
    """Longest window in tokens, special tokens included."""
    overlap: Annotated[int, Between(0)] = 128
    """Tokens that two neighbouring windows of a long context share; less than half of `max_length`."""


@dataclass(frozen=True)
class Training:
    epochs: NonNegative = 1.0
    """Passes over the training set; may be a fraction."""
    batch_size: Positive = 16
    """Most windows in a batch."""
    batch_tokens: Positive = 4096
    """Most tokens in a batch, padding included: long windows come in smaller batches."""
    learning_rate: NonNegative = 1e-3
    """The peak learning rate."""
    optimizer: Literal["adamw", "adam"] = "adamw"
    """AdamW (decoupled weight decay) or Adam."""
    weight_decay: NonNegative = 0.0
    """Weight decay; never applied to biases and LayerNorms."""
    schedule: Literal["constant", "linear", "cosine", "restarts"] = "linear"
    """How the learning rate falls after the warm-up: not at all, linearly, as a cosine, or as cosines with hard restarts."""
    restarts: Positive = 1
    """Number of cosines for `schedule = "restarts"`."""
    warmup: NonNegative = 0.0
    """Warm-up: a share of all steps if below 1, else a number of steps."""
    clip: NonNegative = 1.0
    """Largest gradient norm; 0 = no clipping."""


@dataclass(frozen=True)
class FinetuneRecipe(Training):
    learning_rate: NonNegative = 5e-5
    """The peak learning rate of the backbone."""
    head_learning_rate: NonNegative = 0.0
    """Learning rate of the head trained jointly; 0 = the backbone's."""
    adapter_learning_rate: NonNegative = 0.0
    """Learning rate of the adapters; 0 = the backbone's."""
    weight_decay: NonNegative = 0.01
    """Weight decay; never applied to biases and LayerNorms."""
    warmup: NonNegative = 0.1
    """Warm-up: a share of all steps if below 1, else a number of steps."""
    checkpoints: tuple[NonNegative, ...] = ()
    """Epochs (fractions allowed) at which heads are trained and everything is scored. The end always is one;
    those past `epochs` are never reached."""
    train_layers: int | Literal["all"] = "all"
    """`all`, or the number of last blocks that train (0 = none). LayerNorms and the head always train."""
    adapters: Annotated[int, Between(0)] = 0
    """Size of Houlsby adapters in every block; 0 = none."""
    lora: Annotated[int, Between(0)] = 0
    """Rank of LoRA matrices on the attention's queries and values; 0 = none (needs the `lora` extra)."""
    head: str | dict = "last"
    """The head trained jointly with the backbone: a kind, or a table such as {kind = "attend", form = "dot"}."""


@dataclass(frozen=True)
class BankRecipe(Training):
    feed: Literal["after"] = "after"
    """`after`: heads read the finished checkpoint's states."""


@dataclass(frozen=True)
class EvaluateRecipe:
    decoding: Literal["joint", "independent"] = "joint"
    """`joint`: the best pair with end >= start. `independent`: BERTVision's rule, both argmaxes taken apart."""
    answer_tokens: Positive = 30
    """Longest answer in tokens (joint decoding)."""
    nbest: Positive = 20
    """Candidates kept per question."""
    batch_tokens: Positive = 8192
    """Most tokens in a batch at inference."""


@dataclass(frozen=True)
class Recipe:
    task: Literal["spans"] = "spans"
    """`spans`: extractive question answering with unanswerable questions."""
    title: str = ""
    """A heading for the report."""
    seeds: tuple[int, ...] = (1,)
    """One complete study is run per seed; the report shows mean and spread."""
    snapshot_seconds: NonNegative = 60.0
    """How often training is saved for resuming; never so often that it takes more than a twentieth of the time."""
    backbone: BackboneRecipe = field(default_factory=BackboneRecipe)
    """The encoder."""
    data: DataRecipe = field(default_factory=DataRecipe)
    """What is read."""
    finetune: FinetuneRecipe = field(default_factory=FinetuneRecipe)
    """How the encoder is tuned."""
    bank: BankRecipe = field(default_factory=BankRecipe)
    """How the heads are trained."""
    evaluate: EvaluateRecipe = field(default_factory=EvaluateRecipe)
    """How answers are read off the logits."""
    heads: tuple[dict, ...] = ()
    """The heads of the bank: tables with `kind` and that kind's options (`bertvision heads` lists them);
    `learning_rate` and `name` may be given to any of them."""
    paper: tuple[dict, ...] = ()
    """Published results to show beside ours: tables with `checkpoint`, `member` and metrics."""


def load_recipe(path: str | Path, settings: Iterable[str] = ()) -> Recipe:
    """The recipe in a TOML file, with `key.sub=value` settings laid over it."""
    path = Path(path)
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UserError(f"{path}: no such recipe; see recipes/ for examples") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: not a TOML file: {error}") from None
    for setting in settings:
        _lay_over(table, setting)
    return from_table(table, str(path))


def from_table(table: Mapping[str, Any], where: str = "recipe") -> Recipe:
    """A checked recipe from nested plain values; errors begin with `where`."""
    # The one glance downwards: head options are declared by the head classes, and an error in them should come now.
    from bertvision.heads import check_spec

    recipe = _build(Recipe, table, where)
    for index, spec in enumerate(recipe.heads):
        check_spec(head_spec(spec), f"{where}: heads.{index}")
    check_spec(head_spec(recipe.finetune.head), f"{where}: finetune.head")
    if recipe.data.overlap * 2 >= recipe.data.max_length:
        raise UserError(f"{where}: data.overlap: {recipe.data.overlap} must be less than half of data.max_length")
    if len(set(recipe.seeds)) < max(1, len(recipe.seeds)):
        raise UserError(f"{where}: seeds: give at least one seed, each once")
    return recipe


def head_spec(entry: str | Mapping[str, Any]) -> dict[str, Any]:
    """The part of a recipe's head entry that describes the architecture: without `name` and `learning_rate`."""
    if isinstance(entry, str):
        return {"kind": entry}
    return {key: value for key, value in entry.items() if key not in ("name", "learning_rate")}


def _lay_over(table: dict, setting: str) -> None:
    key, equals, text = setting.partition("=")
    if not equals:
        raise UserError(f"--set {setting}: write it as key=value, for example finetune.epochs=0.5")
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        value = text  # a bare word is a string
    *parents, last = key.strip().split(".")
    node: Any = table
    for name in parents:
        node = _child(node, name, setting)
    if isinstance(node, list):
        _child(node, last, setting)
        node[int(last)] = value
    else:
        node[last] = value


def _child(node: Any, name: str, setting: str) -> Any:
    if isinstance(node, list):
        if not name.isdigit() or int(name) >= len(node):
            raise UserError(f"--set {setting}: {name!r} is not an index below {len(node)}")
        return node[int(name)]
    child = node.setdefault(name, {})
    if not isinstance(child, dict | list):
        raise UserError(f"--set {setting}: {name!r} is not a table")
    return child


def _build(cls: type, table: Any, where: str, prefix: str = "") -> Any:
    if not isinstance(table, Mapping):
        raise UserError(f"{where}: {prefix.rstrip('.')}: {table!r} is not a table")
    hints = typing.get_type_hints(cls, include_extras=True)
    values = {}
    for key, value in table.items():
        if key not in hints:
            raise UserError(f"{where}: {prefix}{key}: unknown key; {nearest(key, hints)}")
        if dataclasses.is_dataclass(hints[key]):
            values[key] = _build(hints[key], value, where, f"{prefix}{key}.")
        else:
            values[key] = convert(value, hints[key], f"{where}: {prefix}{key}")
    return cls(**values)


def convert(value: Any, hint: Any, where: str) -> Any:
    """`value` as the type `hint` asks for (a whole number where a float is wanted, a list as a tuple), or UserError."""
    origin, args = get_origin(hint), get_args(hint)
    if origin is Annotated:
        value, bounds = convert(value, args[0], where), args[1]
        if not bounds.low <= value <= bounds.high:
            raise UserError(f"{where}: {value!r} must be {bounds}")
        return value
    if origin is tuple:
        if not isinstance(value, list | tuple):
            raise UserError(f"{where}: {value!r} is not a list")
        return tuple(convert(item, args[0], f"{where}.{index}") for index, item in enumerate(value))
    if origin in (types.UnionType, typing.Union):
        for option in args:
            try:
                return convert(value, option, where)
            except UserError:
                continue
        raise UserError(f"{where}: {value!r} is not {type_name(hint)}")
    if origin is Literal:
        if value in args and not isinstance(value, bool):
            return value
        hint_text = f"; {nearest(value, args)}" if isinstance(value, str) else ""
        raise UserError(f"{where}: {value!r} is not {type_name(hint)}{hint_text}")
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if not isinstance(value, hint) or (isinstance(value, bool) and hint is not bool):
        raise UserError(f"{where}: {value!r} is not {type_name(hint)}")
    return value


def type_name(hint: Any) -> str:
    """How a type is called in an error and in the documentation."""
    origin, args = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return f"{type_name(args[0])} {args[1]}"
    if origin is tuple:
        return f"a list, each {type_name(args[0])}"
    if origin in (types.UnionType, typing.Union):
        return " or ".join(type_name(option) for option in args)
    if origin is Literal:
        return repr(args[0]) if len(args) == 1 else "one of " + ", ".join(map(repr, args))
    names = {int: "a whole number", float: "a number", bool: "true or false", str: "a string", dict: "a table"}
    return names.get(hint, str(hint))


def to_toml(recipe: Recipe) -> str:
    """The whole recipe, defaults included, as TOML that `load_recipe` reads back to an equal recipe."""
    plain, tables, arrays = [], [], []
    for key, value in dataclasses.asdict(recipe).items():
        if isinstance(value, dict):
            lines = [f"{name} = {_literal(item)}" for name, item in value.items()]
            tables.append("\n".join([f"\n[{key}]", *lines]))
        elif isinstance(value, tuple) and value and isinstance(value[0], dict):
            for entry in value:
                arrays.append("\n".join([f"\n[[{key}]]", *(f"{name} = {_literal(item)}" for name, item in entry.items())]))
        else:
            plain.append(f"{key} = {_literal(value)}")
    return "\n".join([*plain, *tables, *arrays]) + "\n"


def _literal(value: Any) -> str:
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key} = {_literal(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_literal, value)) + "]"
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    return str(value).lower() if isinstance(value, bool) else repr(value)


def documentation(cls: type = Recipe) -> dict[str, str]:
    """Field name -> its docstring, from the source of the dataclass and its bases."""
    found: dict[str, str] = {}
    for base in reversed([c for c in cls.__mro__ if dataclasses.is_dataclass(c)]):
        body = ast.parse(textwrap.dedent(inspect.getsource(base))).body[0].body  # type: ignore[attr-defined]
        for this, following in zip(body, body[1:]):
            if isinstance(this, ast.AnnAssign) and isinstance(following, ast.Expr):
                found[this.target.id] = inspect.cleandoc(following.value.value)  # type: ignore[attr-defined,union-attr]
    return found
