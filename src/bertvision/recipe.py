"""Every option of a study, as dataclasses read from TOML. The string under a field documents it, in docs/recipe.md."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, Literal

from bertvision import toml
from bertvision.errors import UserError
from bertvision.registry import TASKS
from bertvision.schema import LARGEST, STRICT, Count, Interval, NonNegative, Positive, Share, refuse_nul, validate


@dataclass(frozen=True)
class Section:
    """Base of the recipe's tables: strict, unknown keys refused."""

    __pydantic_config__ = STRICT


@dataclass(frozen=True)
class BackboneRecipe(Section):
    name: str = "minilm"
    """The encoder: an alias (`minilm`, `marco`), a local directory with `config.json` and `*.safetensors` (one that is
    called like an alias as `./minilm`), or a hub name."""


@dataclass(frozen=True)
class DataRecipe(Section):
    train: str = "sample:train"
    """The training set: `sample:train[:questions]`, a SQuAD JSON file, or `squad_v2` (hub); for `labels` and `score`
    also `glue:CoLA/train`, or your own .csv, .tsv or .jsonl file. Join several with `+`; `file.json#1/2` is every
    second article from the first on, `file.json*2` counts twice."""
    tune: str = ""
    """The set that thresholds, ensembles and early stops are chosen on. Empty: split off the training articles."""
    test: str = "sample:test"
    """The reported set; nothing is ever chosen on it."""
    also: str = ""
    """A second set to report, such as `glue:MNLI/dev_mismatched`: the same members, scored on it too; empty: none."""
    tune_share: Annotated[float, Interval(ge=0.01, le=0.9)] = 0.1
    """The share of training questions split off, by whole articles, where `tune` is empty."""
    fraction: Annotated[float, Interval(ge=0.0001, le=1)] = 1.0
    """Use only this share of the training questions. Smaller shares are subsets of larger ones; of texts, every label
    (or range of scores) gives the same share."""
    max_length: Annotated[int, Interval(ge=16, le=LARGEST)] = 384
    """Longest window in tokens, special tokens included."""
    overlap: Count = 128
    """Tokens that two neighbouring windows of a long context share, at most three quarters of `max_length`. 240 of 384
    makes windows advance by about 128 tokens: 141 less the question's."""
    limit: Count = 0
    """Most training examples; 0 = all. A smaller limit takes a subset of a larger; of texts, every label (or range of
    scores) gives the same share. A tune set that is split off texts is cut down with it."""
    negatives: NonNegative = 0.0
    """Unanswerable questions to add per answerable one of the training set: a question is paired with the most similar
    other paragraph of its article that does not hold its answer. 0 = none."""
    edited: Share = 0.0
    """Unanswerable questions to add per answerable one of the training set: a question on its own paragraph, with a
    name, number or word changed into another, or negated. 0 = none."""
    glue: str = "data/glue"
    """The folder of the official GLUE files, for sources as `glue:CoLA/train`; if absent, they come from the hub."""
    text: tuple[str, ...] = ()
    """The one or two columns of your own table that hold the text."""
    label: str = ""
    """The column of your own table that holds the label or the score."""
    labels: tuple[str, ...] = ()
    """The labels of your own table, in order; empty: those of the training set, sorted."""
    pairs: Literal["together", "apart"] = "together"
    """Both texts of a pair in one window, or each encoded as if it were alone; all heads then `reduce = "compare"`."""
    metric: Literal["", "accuracy", "f1", "matthews"] = ""
    """The main metric of your own labels; empty: accuracy. `f1`: of the second of two labels, else the mean of all."""
    broken: Literal["refuse", "leave out"] = "refuse"
    """Malformed lines of a table, as in the official QQP/train.tsv: an error that names them, or left out, counted."""


@dataclass(frozen=True)
class Training(Section):
    epochs: NonNegative = 1.0
    """Passes over the training set; may be a fraction."""
    batch_size: Positive = 16
    """Most windows in a batch."""
    batch_tokens: Positive = 4096
    """Most tokens in a batch, padding included: long windows make smaller batches. For heads on [CLS] alone a window
    counts as one token."""
    learning_rate: NonNegative = 1e-3
    """The peak learning rate."""
    optimizer: Literal["adamw", "adam"] = "adamw"
    """AdamW (decoupled weight decay) or Adam."""
    weight_decay: NonNegative = 0.0
    """Weight decay; never applied to biases and LayerNorms."""
    schedule: Literal["constant", "linear", "cosine", "restarts"] = "linear"
    """How the learning rate falls after the warm-up: not at all, linearly, as a cosine, as cosines with restarts."""
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
    """Epochs (fractions allowed) at which heads are trained and everything is scored. The end always is one."""
    train_layers: Count | Literal["all"] = "all"
    """`all`, or the number of last blocks that train (0 = none). The head always trains, LayerNorms as `norms` says."""
    norms: Literal["all", "trained"] = "all"
    """Which LayerNorms train where not all blocks do: all of them, as in the papers, or those of the trained blocks
    alone. Then everything below is frozen and runs without dropout."""
    lower: Literal["live", "stored"] = "live"
    """The frozen part below the first trained block: run in every epoch, or once, its output kept on disk. `stored`
    needs `norms = "trained"` and neither adapters nor LoRA."""
    adapters: Count = 0
    """Size of Houlsby adapters in every block; 0 = none."""
    lora: Count = 0
    """Rank of LoRA matrices on the attention's queries and values; 0 = none (needs the `lora` extra)."""
    biases: bool = False
    """Train all biases of the encoder beside what `train_layers` says. BitFit is `train_layers = 0`, `biases = true`
    and `norms = "trained"`, which leaves the scales of LayerNorms as they are."""
    attention_dropout: Share = 0.0
    """Dropout of attention weights. At 0 fused kernels can run: on a CPU tuning is several times faster. All other
    dropout is the encoder's own; the papers' encoders have 0.1 here."""
    precision: Literal["auto", "fp32", "bf16"] = "auto"
    """How the encoder's products are computed while it is tuned; weights and heads stay fp32. `bf16` is an error where
    the device has no instructions for it. `auto`: bf16 where it has and, on a CPU, a short measurement finds it quicker
    (never with `lower = "stored"`); study.json notes it. Passes without training: see `runtime.precision`."""
    start: str = ""
    """Tuned weights to start from: a checkpoint of another run, such as `runs/a/seed-1/checkpoint-1`, or a reader. The
    encoder and its tuned parts must be the same. Its read-out is taken too, if it is of the same kind; other heads
    start anew. Empty: from the encoder as published."""
    head: str | dict = "last"
    """The head trained jointly with the backbone: a kind, or a table such as `{kind = "attend", form = "dot"}`."""


@dataclass(frozen=True)
class BankRecipe(Training):
    feed: Literal["after", "along"] = "after"
    """`after`: heads read the states of a finished checkpoint. `along`: they train during tuning itself, on the
    states the backbone computes anyway; no pass of their own, and the backbone is tuned exactly as without them."""
    settle: Share = 0.0
    """Share of the training set on whose final states heads that learn `along` are finished at every checkpoint, in
    one pass with a schedule of its own. 0 = they stay as tuning left them."""
    states: Literal["auto", "live", "stored"] = "auto"
    """Where states come from: the backbone in every epoch, a store on disk, or the quicker one by forecast."""
    dtype: Literal["fp16", "int8", "fp32"] = "fp16"
    """How a store keeps states."""
    at: tuple[NonNegative, ...] = ()
    """The checkpoints of the backbone at which heads are trained; empty: all. At the others the backbone alone is
    scored (not with `feed = "along"`)."""
    patience: Count = 0
    """Early stop of each head: checks on the tune set without improvement; its best state is kept. 0 = none."""
    checks: Positive = 4
    """Checks on the tune set per epoch, where there is a `patience`."""
    checkpoints: tuple[NonNegative, ...] = ()
    """Epochs of the heads' training after which they are scored too, beside the end (not with `feed = "along"`)."""
    fractions: tuple[Annotated[float, Interval(ge=0.001, le=1)], ...] = (1.0,)
    """Shares of the training set: every head is trained once per share, all in the same passes."""
    precision: Literal["fp32", "bf16"] = "fp32"
    """How the products of heads are computed while they are trained; their weights and their scores stay fp32. `bf16`
    is an error where the device has no instructions for it."""
    solve: bool = False
    """Heads that are one linear map of the reduced states (`last`, `probe`, `pool weights = "mean"`) are not trained in
    steps: L-BFGS finds the least loss with a penalty on the weights, chosen by cross-validation. For labels, scores."""

    @property
    def along(self) -> bool:
        return self.feed == "along"

    @property
    def after(self) -> "BankRecipe":
        """The training at every checkpoint; of no epochs if there is none."""
        return replace(self, feed="after", epochs=self.settle) if self.along else self


@dataclass(frozen=True)
class EvaluateRecipe(Section):
    decoding: Literal["joint", "independent"] = "joint"
    """`joint`: the best pair with end >= start. `independent`: BERTVision's rule, each argmax by itself."""
    answer_tokens: Positive = 30
    """Longest answer in tokens (joint decoding)."""
    nbest: Positive = 20
    """Candidates kept per question."""
    batch_tokens: Positive = 8192
    """Most tokens in a batch at inference."""
    ensembles: tuple[Literal["max", "mean", "product"], ...] = ("max",)
    """How members are combined: by the maximum, the mean or the product of their probabilities."""


@dataclass(frozen=True)
class RuntimeRecipe(Section):
    device: str = "auto"
    """Where tensors live: `cpu`, `cuda`, `cuda:1`, `mps` or `xpu`; `auto`: the GPU, if torch can use one, else the CPU.
    Not part of a run's identity: a run may go on elsewhere. Its device is noted; another one rounds otherwise."""
    precision: Literal["auto", "fp32", "bf16"] = "fp32"
    """The encoder's products where nothing trains: states for heads, stores, scores. As `finetune.precision`."""
    gradient_checkpointing: bool = False
    """Tuning keeps one state per block and computes the rest again when it is needed: less memory, about a third more
    time, the same bits. May be changed in the middle of a run. Not with `lower = "stored"`."""
    accumulate: Positive = 1
    """Micro-batches that a step of tuning is cut into, each with its own pass: less memory. Processes under torchrun
    share them, so give at least as many as processes; the result depends on this number and not on theirs."""
    compile: bool = False
    """Tuning runs the encoder through torch.compile: quicker on GPUs, after minutes of compiling; needs a compiler."""
    reduce: Literal["exact", "fast"] = "exact"
    """How processes add up gradients: in a fixed order, so that their number changes no bit, or as fast as they can."""


@dataclass(frozen=True)
class HeadEntry(Section):
    name: str = ""
    """Its name in scores and reports; empty: its kind and options."""
    learning_rate: NonNegative = 0.0
    """Its own peak learning rate; 0 = the bank's."""
    weight_decay: NonNegative = 0.0
    """Its own weight decay; where the key is absent, the bank's."""
    warmup: NonNegative = 0.0
    """Its own warm-up; where the key is absent, the bank's."""


@dataclass(frozen=True)
class Recipe(Section):
    task: str = "spans"
    """`spans`: extractive question answering with unanswerable questions. `labels`: classes of texts or pairs; on SQuAD
    data, whether a question can be answered. `score`: a number for a text or a pair. `tokens`: a label for every word,
    such as named entities. A task of your own: `--code FILE`."""
    title: str = ""
    """A heading for the report."""
    seeds: tuple[Count, ...] = (1,)
    """One complete study is run per seed; the report shows mean and spread."""
    snapshot_seconds: NonNegative = 60.0
    """How often training is saved for resuming; never so often that it takes more than a twentieth of the time."""
    backbone: BackboneRecipe = field(default_factory=BackboneRecipe)
    """The encoder."""
    data: DataRecipe = field(default_factory=DataRecipe)
    """The data."""
    finetune: FinetuneRecipe = field(default_factory=FinetuneRecipe)
    """How the encoder is tuned."""
    bank: BankRecipe = field(default_factory=BankRecipe)
    """How the heads are trained."""
    evaluate: EvaluateRecipe = field(default_factory=EvaluateRecipe)
    """How logits become answers."""
    runtime: RuntimeRecipe = field(default_factory=RuntimeRecipe)
    """Where and how it is computed."""
    heads: tuple[dict, ...] = ()
    """The heads of the bank: tables with `kind` and that kind's options (`bertvision heads` lists them). For `labels`
    and `score` also `reduce`: [CLS] alone (`first`, the default), the `mean` or `sum` over all tokens, or `compare`: of
    pairs encoded apart u, v, |u - v|, u * v and their cosine, u and v the mean of each text. For any `depth`: it reads
    the layers up to that block. The encoder runs no further than the heads together read."""
    search: tuple[dict, ...] = ()
    """What `bertvision search` varies in the heads: tables with the `key` of an option or of a head's training, and
    either `values` or `low` and `high` (with `log = true`, evenly over powers). Empty: every option of each kind."""
    variants: tuple[dict, ...] = ()
    """Several studies in one: tables with a `name` and what differs, such as `finetune = {train_layers = 3}`. Each runs
    in a directory of its own under that of the run; one table shows all, compared with the first."""
    paper: tuple[dict[str, int | float | str], ...] = ()
    """Published results to show beside ours: tables with `checkpoint`, `member` and metrics; `source` to cite, and `on`
    for their model and data, such as "BERT-large, SQuAD 2.0", where that differs from this recipe's."""


def load_recipe(path: str | Path, settings: Iterable[str] = ()) -> Recipe:
    """The recipe in a TOML file, with `key.sub=value` settings laid over it."""
    table = toml.read(Path(path))
    for setting in settings:
        toml.lay_over(table, setting)
    return from_table(table, str(path))


def from_table(table: Mapping[str, Any], where: str = "recipe") -> Recipe:
    """A checked recipe from nested plain values; errors begin with `where`."""
    refuse_nul({key: table.get(key) for key in ("backbone", "data", "finetune")}, where)
    recipe = validate(Recipe, table, where)
    if recipe.task not in TASKS:
        TASKS.named(recipe.task, f"{where}: task")
    from bertvision.heads.head import check_heads  # of a later room, which declares the options

    check_heads(recipe, where)
    for key, message in _contradictions(recipe):
        raise UserError(f"{where}: {key}: {message}")
    return recipe


def _contradictions(recipe: Recipe) -> Iterable[tuple[str, str]]:
    """(key, what to do) for values that each have the right type and are impossible, alone or together."""
    data, tuning, depth = recipe.data, recipe.finetune, head_spec(recipe.finetune.head).get("depth", 0)
    for key, text in (("backbone.name", recipe.backbone.name), ("data.train", data.train), ("data.test", data.test)):
        if not text.strip():
            yield key, "must not be empty"
    fractions, ensembles = recipe.bank.fractions, recipe.evaluate.ensembles
    for key, values in (("seeds", recipe.seeds), ("bank.fractions", fractions), ("evaluate.ensembles", ensembles)):
        if len(set(values)) < max(1, len(values)):
            yield key, "give at least one, each once"
    if data.overlap > 0.75 * data.max_length:
        yield "data.overlap", f"{data.overlap} must be at most three quarters of data.max_length"
    for where, entry in ("finetune.head", tuning.head), *(("heads", head) for head in recipe.heads):
        if 0 < head_spec(entry).get("places", 0) < data.max_length:
            yield where, f"places must be at least data.max_length, {data.max_length}"
        if depth and not 0 < head_spec(entry).get("depth", 0) <= depth:  # blocks above are not tuned
            yield where, f"finetune.head stops at block {depth}: give every head a depth of {depth} or less"
    if len(data.text) > 2:
        yield "data.text", "one column, or two for pairs of texts"
    if data.labels and (len(data.labels) < 2 or len(set(data.labels)) < len(data.labels) or not all(data.labels)):
        yield "data.labels", "give at least two, each once, none of them empty"
    if tuning.lower == "stored" and (tuning.norms == "all" or tuning.adapters or tuning.lora or tuning.biases):
        yield "finetune.lower", '"stored" needs norms = "trained", and neither adapters nor LoRA nor biases'
    if tuning.lower == "stored" and tuning.precision == "bf16":
        yield "finetune.precision", 'with lower = "stored" only "fp32" is possible'
    if tuning.lower == "stored" and recipe.runtime.gradient_checkpointing:
        yield "runtime.gradient_checkpointing", 'with lower = "stored" the blocks above keep their states; give false'
    yield from _bank_contradictions(recipe)


def _bank_contradictions(recipe: Recipe) -> Iterable[tuple[str, str]]:
    bank, planned = recipe.bank, reached(recipe.finetune.epochs, recipe.finetune.checkpoints)
    if missing := [epoch for epoch in bank.at if epoch not in planned]:
        yield "bank.at", f"{missing[0]:g} is no checkpoint; there are {', '.join(f'{epoch:g}' for epoch in planned)}"
    if bank.along:  # the heads train during fine-tuning
        for key in [key for key in ("at", "patience", "checkpoints") if getattr(bank, key)]:
            yield f"bank.{key}", 'feed = "along" has no early stop and keeps heads at finetune.checkpoints; give none'
        if bank.states == "stored":
            yield "bank.states", 'feed = "along" reads no store; give "auto"'
    elif bank.settle:
        yield "bank.settle", 'finishes heads that learn along; set bank.feed = "along"'
    in_steps = bank.along or bank.checkpoints or bank.fractions != (1.0,)
    if bank.solve and (in_steps or recipe.task not in ("labels", "score")):
        yield "bank.solve", 'is for labels and scores, and feed = "after" without checkpoints and fractions; give false'


def head_spec(entry: str | Mapping[str, Any]) -> dict[str, Any]:
    """The part of a recipe's head entry that describes the architecture: without the keys of HeadEntry."""
    plain = {"kind": entry} if isinstance(entry, str) else entry
    return {key: value for key, value in plain.items() if key not in HeadEntry.__annotations__}


def reached(epochs: float, checkpoints: Iterable[float]) -> list[float]:
    """The epochs, as in file names, at which tuning leaves checkpoints: those asked for before its end, and the end."""
    return sorted({float(f"{epoch:g}") for epoch in (*checkpoints, epochs) if epoch <= epochs})


def has_heads(recipe: Recipe, epoch: float) -> bool:
    """Whether a checkpoint of the backbone has a bank."""
    return bool(recipe.heads) and (not recipe.bank.at or epoch in recipe.bank.at)
