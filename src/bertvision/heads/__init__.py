"""Heads: States -> logits. One method, one file; importing this package registers all of them."""

from bertvision.heads import attend, cacnn, compress, conv, last, pool
from bertvision.heads.base import Head, Reduce, build_head, check_spec, head_name, options, register
from bertvision.registry import HEADS

__all__ = [
    "HEADS",
    "Head",
    "Reduce",
    "attend",
    "build_head",
    "cacnn",
    "check_spec",
    "compress",
    "conv",
    "head_name",
    "last",
    "options",
    "pool",
    "register",
]
