"""Imports transformers without what only training, compiling and many processes need: half of its imports' time.

For a process that does nothing but answer, such as `bertvision ask`. Its effects stay: until the end of the process
transformers takes scipy and accelerate for missing, and torch for a build without distributed training. The states of
an encoder are the same.
"""

import importlib
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any
from unittest.mock import patch

OPTIONAL = (
    "scipy",
    "accelerate",
)  # transformers uses them for losses of object detection and models on several devices
COMPILER = "torch._dynamo"  # imported for these decorators, which matter to compiled models alone
DECORATORS = ("disable", "assume_constant_result", "allow_in_graph")
TRACING = f"{COMPILER}._trace_wrapped_higher_order_op"  # and for a context manager
INDEXING = "TransformGetItemToIndex"


def import_lean() -> None:
    """Imports what loading an encoder needs of transformers; nothing happens if it has been imported already."""
    if "transformers.modeling_utils" in sys.modules or COMPILER in sys.modules:
        return
    import torch
    from torch import distributed

    with patch.object(distributed, "is_available", lambda: False), _without(OPTIONAL), _without_compiler(torch):
        try:
            from transformers import AutoModel, AutoTokenizer, BertModel, PreTrainedModel  # noqa: F401
        except (ImportError, AttributeError):  # another version of transformers needs more: it is imported as usual
            return


@contextmanager
def _without(names: tuple[str, ...]) -> Iterator[None]:
    """Within, these packages count as not installed, unless they have been imported."""
    hidden = [name for name in names if name not in sys.modules]
    sys.modules.update(dict.fromkeys(hidden))  # type: ignore[arg-type]
    try:
        yield
    finally:
        for name in hidden:
            sys.modules.pop(name, None)


@contextmanager
def _without_compiler(torch: ModuleType) -> Iterator[None]:
    """Within, the compiler is a module of decorators that do nothing."""
    compiler, tracing = ModuleType(COMPILER), ModuleType(TRACING)
    for name in DECORATORS:
        setattr(compiler, name, _unchanged)
    setattr(tracing, INDEXING, _indexing)
    sys.modules |= {COMPILER: compiler, TRACING: tracing}
    try:
        yield
    finally:
        for name in (COMPILER, TRACING):
            sys.modules.pop(name, None)
        vars(torch).pop(COMPILER.rpartition(".")[2], None)


def _unchanged(function: Callable[..., Any] | None = None, *_: Any, **__: Any) -> Any:
    """A decorator, with or without arguments, that returns the function itself."""
    return function if function is not None else lambda wrapped: wrapped


def _indexing() -> Any:
    """The compiler's own context manager, imported when it is used."""
    return getattr(importlib.import_module(TRACING), INDEXING)()
