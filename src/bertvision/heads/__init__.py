"""Heads: States -> logits per position. Importing this package registers all of them."""

from bertvision.heads import attend, cacnn, compress, conv, pool  # noqa: F401
from bertvision.heads.base import (
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
