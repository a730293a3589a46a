"""Heads: States -> logits per position. `registry.HEADS` names them; each is imported when it is first used."""

from bertvision.heads.head import (
    SPECS,
    Head,
    Reduce,
    build_head,
    check_spec,
    head_name,
    options,
    register,
    saved_spec,
)
from bertvision.registry import HEADS

__all__ = [
    "HEADS",
    "SPECS",
    "Head",
    "Reduce",
    "build_head",
    "check_spec",
    "head_name",
    "options",
    "register",
    "saved_spec",
]
