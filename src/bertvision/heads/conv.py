"""`conv`: convolutions over the states as an image of tokens x width, with the layers as its colours."""

from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import dropout

from bertvision.backbone.states import States
from bertvision.heads.base import Count, Head, Impossible, Share, register
from bertvision.heads.compress import Squeeze
from bertvision.heads.inception import Inception
from bertvision.heads.parallel import Parallel
from bertvision.heads.pool import LayerPool
from bertvision.heads.xception import FULL, SHORT, Xception, tokens_plan

COMPRESSED = 386  # the size that the paper's heads of this kind use


@register("conv")
class Conv(Head):
    """Convolutions that keep the tokens: logits = W [f(x); extras] + b, f one of four small networks.

    x, the image (tokens x width): input = "states", all layers as channels; "pooled", their mix (weights = "learned"
    or "mean", see `pool`) as one channel; "compressed", the mix again, and GELU(D mix), D: H -> 386, among the extras.
    skip puts the last layer's states among the extras. dropout acts on all that W reads.
    f: "row", 1 x N kernels along the width, N = 1 to 7 side by side, `filters` of each, every fourth position, then a
    dense layer to 22; "grid", the same with N x N kernels over tokens and width, dense to 50; `dilated` adds to both
    kernels that reach four times as far. "inception": a strided convolution and five blocks of parallel 1 x 1, 3 x 3,
    5 x 5 windows and maximum. "xception": residual blocks of separable 3 x 3 convolutions. For labels and score the
    image is one row, [CLS]: windows run along the width, and depth = "full" is Xception in its original size.
    Parameters: f's (see its class) + W's outputs * (features + [386] + [H] + 1) + [L + 1] + [(H + 1) * 386].
    """

    def __init__(
        self,
        layers: int,
        width: int,
        outputs: int,
        *,
        form: Literal["row", "grid", "inception", "xception"] = "row",
        input: Literal["states", "pooled", "compressed"] = "states",
        weights: Literal["learned", "mean"] = "learned",
        filters: Count = 8,
        dilated: bool = False,
        skip: bool = False,
        depth: Literal["short", "full"] = "short",
        dropout: Share = 0.0,
        positions: Literal["all", "cls"] = "all",
    ) -> None:
        super().__init__()
        parallel = form in ("row", "grid")
        tokens = positions == "all"
        if form == "grid" and not tokens:
            raise Impossible("form", "'grid' looks at neighbouring tokens, and this head reads [CLS] alone; use 'row'")
        if not parallel and (dilated or filters != 8):
            raise Impossible("dilated" if dilated else "filters", f"only for form 'row' and 'grid', not {form!r}")
        if input == "states" and weights == "mean":
            raise Impossible("weights", "only for input 'pooled' and 'compressed'; 'states' takes the layers unmixed")
        if depth == "full" and (form != "xception" or tokens):
            raise Impossible("depth", "'full' is for form 'xception' on [CLS] alone")
        self.skip, self.dropout = skip, dropout
        self.pool = None if input == "states" else LayerPool(layers, weights)
        self.squeeze = Squeeze(1, width, COMPRESSED) if input == "compressed" else None
        channels = layers if input == "states" else 1
        self.trunk: Parallel | Inception | Xception
        if parallel:
            self.trunk = Parallel(channels, width, form, filters, dilated)
        elif form == "inception":
            self.trunk = Inception(channels, width, tokens)
        else:
            plan = tokens_plan(width) if tokens else FULL if depth == "full" else SHORT
            self.trunk = Xception(channels, width, plan, reach=3 if tokens else 1)
        extras = (COMPRESSED if self.squeeze else 0) + (width if skip else 0)
        self.readout = nn.Linear(self.trunk.features + extras, outputs)

    def forward(self, states: States) -> Tensor:
        layers, mask = states.layers, states.mask
        image = layers if self.pool is None else self.pool(layers).unsqueeze(1)  # (B, L or 1, S, H)
        features = [self.trunk(image, mask)]  # (B, S, features)
        if self.squeeze is not None:
            features.append(self.squeeze(image).squeeze(1))  # (B, S, 386)
        if self.skip:
            features.append(layers[:, -1])  # (B, S, H)
        seen = dropout(torch.cat(features, dim=-1), self.dropout, self.training)
        return self.readout(seen)

    def layer_weights(self) -> Tensor | None:
        """The learned mix; with input = "states" the norm of the first kernels that read each layer, as shares."""
        if self.pool is not None:
            return self.pool.layer_weights()
        norms = self.trunk.channel_norms()  # (L,)
        return norms / norms.sum()
