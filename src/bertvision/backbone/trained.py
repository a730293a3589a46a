"""What training has changed in an encoder, in one file of a few megabytes; laid over the untouched encoder at load.

A safetensors file of exactly the tensors that trained. Its header holds the tuning plan, the shape of the encoder and
a fingerprint of the weights that did not train, so that it never lands on another encoder.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn
from transformers import PreTrainedModel

from bertvision.backbone.anatomy import depth, pooler, width
from bertvision.backbone.tuning import Plan, Tuning, apply, is_added
from bertvision.errors import UserError

FORMAT = "bertvision tuning 1"
FILES = ("backbone.safetensors", "encoder.safetensors")  # as a checkpoint and a reader call it
PROBE = 64  # leading numbers of each frozen tensor that enter its fingerprint


def trained_state(model: PreTrainedModel) -> dict[str, Tensor]:
    """Exactly the tensors that train: adapters, LoRA, LayerNorms, unfrozen blocks. Detached, not copied."""
    return {name: parameter.detach() for name, parameter in model.named_parameters() if parameter.requires_grad}


def save(model: PreTrainedModel, tuning: Tuning, file: Path | str) -> None:
    """Writes what `apply(model, tuning)` and the training since then have made of the encoder."""
    file = Path(file)
    state = trained_state(model)
    header = {
        "format": FORMAT,
        "encoder": json.dumps(_shape(model)),
        "tuning": json.dumps(asdict(tuning)),
        "frozen": json.dumps(_fingerprints(model, state)),
    }
    unfinished = file.with_name(f".{file.name}.part")
    save_file({name: tensor.contiguous().cpu() for name, tensor in state.items()}, unfinished, metadata=header)
    unfinished.replace(file)


def load(model: PreTrainedModel, file: Path | str) -> Plan:
    """Makes the plain encoder `model`, in place, what was saved: adapters inserted, trained tensors copied in.

    A file that is broken or belongs to another encoder is refused before the model is touched.
    """
    header, state = _read(Path(file))
    if any(is_added(name) for name, _ in model.named_parameters()):
        raise UserError(f"{file}: the encoder already has adapters or LoRA in it; load a plain one first")
    tuning = _check(model, header, state, str(file))
    plan = apply(model, tuning, seed=None)  # all that it adds is in `state`
    target = trained_state(model)
    if {name: tensor.shape for name, tensor in target.items()} != {
        name: tensor.shape for name, tensor in state.items()
    }:
        raise UserError(f"{file}: its tensors do not fit its own header; save it again")
    for name, tensor in state.items():
        target[name].copy_(tensor)
    return plan


def found_in(directory: Path | str) -> Path:
    """The file of what training has changed, in a checkpoint of a run or in a reader."""
    for name in FILES:
        if (path := Path(directory).expanduser() / name).is_file():
            return path
    raise UserError(f"{directory}: holds no tuned encoder; give a checkpoint, RUN/seed-N/checkpoint-E, or a reader")


def start_from(model: PreTrainedModel, file: Path, tuning: Tuning) -> None:
    """`apply(model, tuning)`, but with the tensors that an earlier training has left, under the same plan."""
    earlier = load(model, file).tuning
    if earlier != tuning:
        theirs, ours = (
            ", ".join(f"{key} = {value}" for key, value in asdict(one).items()) for one in (earlier, tuning)
        )
        raise UserError(f"{file}: was tuned with {theirs}, which must be the same as here: {ours}")


def _read(file: Path) -> tuple[dict[str, str], dict[str, Tensor]]:
    if not file.is_file():
        raise UserError(f"{file}: no such file; give one that training has saved")
    try:
        with safe_open(file, framework="pt") as opened:
            header = opened.metadata() or {}
            state = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118 - not a mapping
    except (SafetensorError, OSError) as error:
        raise UserError(f"{file}: not a whole safetensors file ({error}); copy or train it again") from None
    if header.get("format") != FORMAT:
        raise UserError(f"{file}: not a tuning of an encoder saved by bertvision; give one that training has saved")
    return header, state


def _check(model: PreTrainedModel, header: Mapping[str, str], state: Mapping[str, Tensor], where: str) -> Tuning:
    """The tuning plan in the header, once the file is known to belong to `model`."""
    try:
        encoder, frozen = dict(json.loads(header["encoder"])), dict(json.loads(header["frozen"]))
        tuning = Tuning(**json.loads(header["tuning"]))
    except (KeyError, TypeError, ValueError):
        raise UserError(f"{where}: its header is damaged; copy or train it again") from None
    for key, here in _shape(model).items():
        if encoder.get(key) != here:
            raise UserError(
                f"{where}: trained on an encoder with {key} {encoder.get(key)}, this one has {here}; load that encoder"
            )
    own = _fingerprints(model, state)
    # an encoder loaded in another precision has other bytes: only the same precision can be compared
    if frozen.get("dtype") == own["dtype"] and frozen.get("sha256") != own["sha256"]:
        raise UserError(f"{where}: trained on other weights than this encoder's; load the encoder it was trained on")
    return tuning


def _shape(model: PreTrainedModel) -> dict[str, int | str]:
    kind = model.config.model_type
    return {"type": kind, "width": width(model), "layers": depth(model), "vocabulary": model.config.vocab_size}


def _fingerprints(model: PreTrainedModel, trained: Mapping[str, Tensor]) -> dict[str, str]:
    """Precision of the weights outside `trained`, and a digest of the beginning of each: cheap, and telling."""
    moved = {_plain(name) for name in trained}
    # No head reads the pooler, and where a checkpoint lacks one its weights are whatever transformers draws.
    unread = {id(parameter) for parameter in (pooler(model) or nn.Identity()).parameters()}
    digest = hashlib.sha256()
    for name, parameter in sorted((_plain(name), parameter) for name, parameter in model.named_parameters()):
        if name not in moved and id(parameter) not in unread:
            beginning = parameter.detach().flatten()[:PROBE].cpu().contiguous()
            digest.update(name.encode())
            digest.update(beginning.view(torch.uint8).numpy().tobytes())
    return {"dtype": str(model.dtype), "sha256": digest.hexdigest()}


def _plain(name: str) -> str:
    """The name a tensor has in the plain encoder: LoRA moves the map it updates one level down."""
    return name.replace(".base_layer.", ".")
