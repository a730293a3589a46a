"""Trained tensors of an encoder: saved as one small file, loaded over the untouched encoder.

A safetensors file of exactly the tensors that trained, or of their compressed difference to the plain encoder. Its
header holds the tuning plan, the shape of the encoder and a fingerprint of the frozen weights, or of all plain ones, so
that it is never loaded into another encoder.

A compressed difference D (m, n) is kept as L^T R with L (r, m) and R (r, n), the r largest terms of its singular value
decomposition; vectors, and matrices that factors would not make smaller, are kept whole. Numbers are fp32, fp16, or
int8 with a scale for each row. Tensors that did not change are left out.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Literal, get_args

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from bertvision.backbone.anatomy import depth, pooler, width
from bertvision.backbone.plan import Plan, Tuning
from bertvision.backbone.tuning import apply, is_added, plan_of, unused
from bertvision.errors import UserError, nearest
from bertvision.files import fitting, load_whole, write_tensors

FORMAT, COMPRESSED = "bertvision tuning 1", "bertvision tuning 2"
FILES = ("backbone.safetensors", "encoder.safetensors")  # names in a checkpoint and in a reader
PROBE = 64  # leading numbers of each frozen tensor that enter its fingerprint
Numbers = Literal["fp32", "fp16", "int8"]
RANKS = (16, 32, 48, 64, 96, 128)  # those that `rank=auto` tries
LEFT, RIGHT, SCALE = ":left", ":right", ":scale"  # endings of the names of a tensor's parts


@dataclass(frozen=True, slots=True)
class Compression:
    """How differences are kept. rank: most terms of a matrix. numbers: of matrices; vectors are fp16 beside int8."""

    rank: int
    numbers: Numbers = "int8"

    def __str__(self) -> str:
        return f"rank={self.rank},{self.numbers}"


def parse_compression(text: str) -> list[Compression]:
    """`rank=64`, `rank=64,fp16`, `rank=auto` -> the compressions to try, the smallest first; int8 by default."""
    words = [word.strip() for word in text.split(",")]
    ranks, numbers = [word.removeprefix("rank=") for word in words if word.startswith("rank=")], "int8"
    for word in (word for word in words if not word.startswith("rank=")):
        if word not in get_args(Numbers):
            raise UserError(f"--compress {text}: {word!r} is not a kind of number; {nearest(word, get_args(Numbers))}")
        numbers = word
    if len(ranks) != 1 or len(words) > 2 or not (ranks[0] == "auto" or (ranks[0].isdecimal() and int(ranks[0]))):
        raise UserError(f"--compress {text}: give rank=64, rank=64,fp16 or rank=auto")
    wanted = RANKS if ranks[0] == "auto" else (int(ranks[0]),)
    return [Compression(rank, numbers) for rank in wanted]  # type: ignore[arg-type]


class Difference:
    """The difference made by tuning, to be compressed at any rank. plain, tuned: tensors by name, of the same shapes.

    A tensor that the plain encoder does not have, as those of adapters, is its own difference.
    """

    def __init__(self, plain: Mapping[str, Tensor], tuned: Mapping[str, Tensor]) -> None:
        self.whole = {
            name: tensor.float() - plain[name].float() if name in plain else tensor.float()
            for name, tensor in tuned.items()
        }
        self.whole = {name: tensor for name, tensor in self.whole.items() if tensor.any()}
        self._factors: dict[str, tuple[Tensor, Tensor]] = {}

    def compress(self, how: Compression) -> dict[str, Tensor]:
        """The tensors of a file, by name; see `expand`."""
        tensors: dict[str, Tensor] = {}
        for name, whole in self.whole.items():
            if whole.dim() == 2 and how.rank * sum(whole.shape) < whole.numel():
                left, right = self._terms(name)
                tensors |= _stored(name + LEFT, left[: how.rank], how.numbers)
                tensors |= _stored(name + RIGHT, right[: how.rank], how.numbers)
            else:
                numbers = "fp16" if how.numbers == "int8" and whole.dim() != 2 else how.numbers
                tensors |= _stored(name, whole, numbers)
        return tensors

    def _terms(self, name: str) -> tuple[Tensor, Tensor]:
        """All terms of a matrix (m, n), the largest first: (k, m) and (k, n), each with half of the singular value."""
        if name not in self._factors:
            u, s, v = torch.linalg.svd(self.whole[name], full_matrices=False)
            root = s.sqrt()
            self._factors[name] = (u * root).T.contiguous(), root[:, None] * v
        return self._factors[name]


def expand(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """{name: difference, fp32} from what `Difference.compress` gave; KeyError if a part is missing."""
    differences: dict[str, Tensor] = {}
    for name in tensors:
        base, _, part = name.partition(":")
        if not part:
            differences[base] = _value(tensors, base)
        elif name.endswith(LEFT):
            differences[base] = _value(tensors, name).T @ _value(tensors, base + RIGHT)  # (m, r) x (r, n)
    return differences


def _stored(name: str, values: Tensor, numbers: str) -> dict[str, Tensor]:
    if numbers == "int8":
        scale = values.abs().amax(dim=1, keepdim=True).clamp_min(torch.finfo(torch.float32).tiny) / 127
        return {name: (values / scale).round().to(torch.int8), name + SCALE: scale}
    kept = values.half() if numbers == "fp16" else values
    if not kept.isfinite().all():
        raise UserError("--compress: a weight is too large for fp16; give fp32 or int8")
    return {name: kept.contiguous()}


def _value(tensors: Mapping[str, Tensor], name: str) -> Tensor:
    stored = tensors[name]
    return stored.float() * tensors[name + SCALE] if stored.dtype == torch.int8 else stored.float()


def trained_state(model: PreTrainedModel) -> dict[str, Tensor]:
    """Exactly the tensors that train: adapters, LoRA, LayerNorms, unfrozen blocks. Detached, not copied."""
    return {name: parameter.detach() for name, parameter in model.named_parameters() if parameter.requires_grad}


def save_tuned(model: PreTrainedModel, tuning: Tuning, file: Path | str) -> None:
    """Writes the tensors that train under `tuning`, which has been applied to `model`."""
    write_tensors(Path(file), *tuned_tensors(model, tuning))


def tuned_tensors(model: PreTrainedModel, tuning: Tuning) -> tuple[dict[str, Tensor], dict[str, str]]:
    """The tensors and the header of the file that `save_tuned` writes."""
    state = trained_state(model)
    header = _header(model, tuning, FORMAT, _fingerprints(model, state, tuning))
    return {name: tensor.contiguous().cpu() for name, tensor in state.items()}, header


class Plain:
    """The weights of an encoder before it is tuned: what tuning changes can be compressed against them."""

    def __init__(self, model: PreTrainedModel) -> None:
        self._tensors = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
        self._fingerprints = _fingerprints(model, {})

    def difference(self, model: PreTrainedModel) -> Difference:
        """The difference that tuning made to `model`, to be compressed at one rank or several."""
        trained = trained_state(model)
        plain = {name: self._tensors[_plain(name)] for name in trained if not is_added(name)}
        return Difference(plain, trained)

    def compressed(
        self, model: PreTrainedModel, tuning: Tuning, difference: Difference, how: Compression
    ) -> tuple[dict[str, Tensor], dict[str, str]]:
        """Tensors and header of a file with the compressed difference; `model` gets the weights that it stands for."""
        tensors = difference.compress(how)
        target = trained_state(model)
        for name, tensor in target.items():
            if not is_added(name):
                tensor.copy_(self._tensors[_plain(name)])
        _add(target, expand(tensors))
        return tensors, _header(model, tuning, COMPRESSED, self._fingerprints)


def load_tuned(model: PreTrainedModel, file: Path | str) -> Plan:
    """Loads a saved tuning into `model`, in place: inserts its adapters and LoRA, and copies the trained tensors.

    model: the plain encoder, or one already tuned with the same plan (an earlier or later checkpoint of the same
    training), whose trained tensors are replaced. A damaged file, or one of another encoder, changes nothing.
    """
    header, state = _read(Path(file))
    if header["format"] == COMPRESSED:
        return _load_compressed(model, header, state, Path(file))
    tuning = _check(model, header, str(file), state)
    wanted = {name: tensor.shape for name, tensor in state.items()}
    if _trained_shapes(model) != wanted:
        if any(is_added(name) for name, _ in model.named_parameters()):
            raise UserError(f"{file}: the encoder already has adapters or LoRA of another plan; load a plain one first")
        apply(model, tuning, seed=None)  # the values of all that it adds are in `state`
        if _trained_shapes(model) != wanted:
            raise UserError(f"{file}: its tensors do not fit its own header; save it again")
    target = trained_state(model)
    for name, tensor in state.items():
        target[name].copy_(tensor)
    return plan_of(model, tuning)


def _load_compressed(model: PreTrainedModel, header: dict[str, str], state: dict[str, Tensor], file: Path) -> Plan:
    tuning = _check(model, header, str(file))
    with fitting(file, "compressed tuning"):
        changes = expand(state)
    apply(model, tuning, seed=None)
    target = trained_state(model)
    if any(name not in target or target[name].shape != change.shape for name, change in changes.items()):
        raise UserError(f"{file}: its tensors do not fit its own header; copy or build it again")
    _add(target, changes)
    return replace(plan_of(model, tuning), compressed=(state, header))


def _add(target: Mapping[str, Tensor], changes: Mapping[str, Tensor]) -> None:
    """Adds differences to the plain weights in `target`; what the plain encoder does not have is the difference."""
    for name, tensor in target.items():
        if is_added(name):
            tensor.copy_(changes[name]) if name in changes else tensor.zero_()
        elif name in changes:
            tensor.add_(changes[name])


def find_tuned(directory: Path | str) -> Path:
    """The file of trained tensors in a checkpoint of a run or in a reader."""
    for name in FILES:
        if (path := Path(directory).expanduser() / name).is_file():
            return path
    raise UserError(f"{directory}: holds no tuned encoder; give a checkpoint, RUN/seed-N/checkpoint-E, or a reader")


def start_from(model: PreTrainedModel, file: Path, tuning: Tuning) -> None:
    """`apply(model, tuning)`, but starting from the tensors of an earlier training with the same plan."""
    earlier = load_tuned(model, file).tuning
    if earlier != tuning and replace(earlier, depth=tuning.depth) == tuning and not (tuning.adapters or tuning.lora):
        apply(model, tuning)  # only less of the encoder is used
    elif earlier != tuning:
        its_plan, wanted_plan = (
            ", ".join(f"{key} = {value}" for key, value in asdict(plan).items()) for plan in (earlier, tuning)
        )
        raise UserError(f"{file}: was tuned with {its_plan}, which must be the same as here: {wanted_plan}")


def _trained_shapes(model: PreTrainedModel) -> dict[str, torch.Size]:
    return {name: tensor.shape for name, tensor in trained_state(model).items()}


def _read(file: Path) -> tuple[dict[str, str], dict[str, Tensor]]:
    if not file.is_file():
        raise UserError(f"{file}: no such file; give one that training has saved")
    state, header = load_whole(file, "tuned encoder", "copy or train it again", finite=True)
    if header.get("format") not in (FORMAT, COMPRESSED):
        raise UserError(f"{file}: not a tuning of an encoder saved by bertvision; give one that training has saved")
    return header, state


def _check(
    model: PreTrainedModel, header: Mapping[str, str], where: str, state: Mapping[str, Tensor] | None = None
) -> Tuning:
    """The tuning plan in the header; UserError if the file does not belong to `model`. state: not if compressed."""
    try:
        encoder, frozen = dict(json.loads(header["encoder"])), dict(json.loads(header["frozen"]))
        tuning = Tuning(**json.loads(header["tuning"]))
    except (KeyError, TypeError, ValueError):
        raise UserError(f"{where}: its header is damaged; copy or train it again") from None
    for key, own in _shape(model).items():
        if encoder.get(key) != own:
            raise UserError(
                f"{where}: trained on an encoder with {key} {encoder.get(key)}, this one has {own}; load that encoder"
            )
    own_fingerprints = _fingerprints(model, {}) if state is None else _fingerprints(model, state, tuning)
    # an encoder loaded in another precision has other bytes: only the same precision can be compared
    if frozen.get("dtype") == own_fingerprints["dtype"] and frozen.get("sha256") != own_fingerprints["sha256"]:
        raise UserError(f"{where}: trained on other weights than this encoder's; load the encoder it was trained on")
    return tuning


def _header(model: PreTrainedModel, tuning: Tuning, form: str, fingerprints: dict[str, str]) -> dict[str, str]:
    return {
        "format": form,
        "encoder": json.dumps(_shape(model)),
        "tuning": json.dumps(asdict(tuning)),
        "frozen": json.dumps(fingerprints),
    }


def _shape(model: PreTrainedModel) -> dict[str, int | str]:
    kind = model.config.model_type
    return {"type": kind, "width": width(model), "layers": depth(model), "vocabulary": model.config.vocab_size}


def _fingerprints(
    model: PreTrainedModel, trained: Mapping[str, Tensor], tuning: Tuning | None = None
) -> dict[str, str]:
    """Precision of the weights outside `trained`, and a digest of the beginning of each, which is quick to compute.

    tuning: parts above its depth do not count: a reader may be without them.
    """
    moved = {_plain(name) for name in trained}
    # Where a checkpoint lacks a pooler, transformers draws its weights at random, and no head reads it.
    parts = [pooler(model) or nn.Identity(), *(unused(model, tuning) if tuning else ())]
    unread = {id(parameter) for part in parts for parameter in part.parameters()}
    digest = hashlib.sha256()
    for name, parameter in sorted((_plain(name), parameter) for name, parameter in model.named_parameters()):
        if name not in moved and id(parameter) not in unread:
            beginning = parameter.detach().flatten()[:PROBE].cpu().contiguous()
            digest.update(name.encode())
            digest.update(beginning.view(torch.uint8).numpy().tobytes())
    return {"dtype": str(model.dtype), "sha256": digest.hexdigest()}


def _plain(name: str) -> str:
    """The name of a tensor in the plain encoder: LoRA moves the map it updates one level down."""
    return name.replace(".base_layer.", ".")
