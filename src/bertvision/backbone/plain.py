"""Attention written out, for those who read an encoder as a graph."""

from collections.abc import Iterator
from contextlib import contextmanager

from bertvision.backbone.backbone import Backbone


@contextmanager
def plain_attention(backbone: Backbone) -> Iterator[None]:
    """Meanwhile attention is products, a sum and a softmax: a runtime knows how to run these together and fast.

    Torch's fused function, taken apart for such a graph, also guards against rows without any token; none are here.
    """
    model = backbone.model
    before = model.config._attn_implementation
    model.set_attn_implementation("eager")
    try:
        yield
    finally:
        model.set_attn_implementation(before)
