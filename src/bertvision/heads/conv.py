"""`conv`: convolutions over the states as an image of tokens x width, with the layers as its channels."""

import math
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import conv2d, dropout, gelu, linear, pad

from bertvision.backbone.states import POOLED, States
from bertvision.heads.compress import Squeeze
from bertvision.heads.conv_deep import FullXception, Inception, ShortXception, Xception
from bertvision.heads.head import Count, Head, Impossible, Share, eager_on_cpu, in_slices, register
from bertvision.heads.pool import LayerPool, check_cls

COMPRESSED = 386  # the size that the paper's heads of this kind use
LARGEST = 7  # kernels of 1 to 7
STRIDE = 4  # along the width
HIDDEN = {"row": 22, "grid": 50}  # with these, the sizes on BERT-large are those of the paper


class LaidOut(torch.autograd.Function):
    """A convolution of size rows x 7 at every fourth position of the width, as windows laid out and one product.

    image (B, C, S, W), kernel (F, C, rows, 7), bias (F,) -> (B, S, W', F), W' = ceil(W / 4). Several times as fast on a
    CPU as conv2d, whose gradient for one channel is very slow, and as unfold, whose gradient is.
    """

    @staticmethod
    def forward(ctx: Any, image: Tensor, kernel: Tensor, bias: Tensor) -> Tensor:
        rows = kernel.shape[2]
        padded = pad(image, (LARGEST // 2, LARGEST // 2, rows // 2, rows // 2))
        windows = padded.unfold(2, rows, 1).unfold(3, LARGEST, STRIDE)  # (B, C, S, W', rows, 7)
        windows = windows.permute(0, 2, 3, 1, 4, 5).flatten(3)  # (B, S, W', C * rows * 7)
        features = linear(windows, kernel.flatten(1), bias)
        ctx.save_for_backward(windows.to(features.dtype), kernel.to(features.dtype))  # bf16 under autocast
        ctx.width = image.shape[3]
        return features

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, Tensor, Tensor]:
        windows, kernel = ctx.saved_tensors
        gradient = gradients[0].flatten(0, 2)  # (B * S * W', F)
        of_kernel = (gradient.T @ windows.flatten(0, 2)).view(kernel.shape)
        of_image = None
        if ctx.needs_input_grad[0]:
            # (C * rows * 7, B * S * W'): each element of a kernel in one piece
            products = kernel.flatten(1).T @ gradient.T
            of_image = _added_up(products.view(*kernel.shape[1:], *windows.shape[:3]), ctx.width)
        return of_image, of_kernel, gradient.sum(dim=0)


def _added_up(products: Tensor, width: int) -> Tensor:
    """What each window adds to each place it covers, (C, rows, 7, B, S, W') -> (B, C, S, width)."""
    channels, rows, size, batch, tokens, steps = products.shape
    # the padded width in steps of four: place x of a window at step w is unit x % 4 of step w + x // 4
    total = products.new_zeros(channels, batch, tokens + rows - 1, steps + (size - 1) // STRIDE, STRIDE)
    for row in range(rows):
        for column in range(size):
            step = column // STRIDE
            total[:, :, row : row + tokens, step : step + steps, column % STRIDE] += products[:, row, column]
    above, side = rows // 2, size // 2
    return total.flatten(3)[:, :, above : above + tokens, side : side + width].transpose(0, 1)


class Bundle(nn.Module):
    """GELU(K * x + b), F kernels K of each size N from `smallest` to 7, 1 x N or N x N (grid), run as one convolution.

    (B, C, S, W) -> (B, S, features), features = ceil(W / 4) * sizes * F.
    Parameters: sum_N (C * N + 1) * F, with N * N in place of N for grid.
    """

    def __init__(self, channels: int, width: int, filters: int, smallest: int, grid: bool) -> None:
        super().__init__()
        self.rows = LARGEST if grid else 1
        self.kernels = nn.ParameterList()
        for size in range(smallest, LARGEST + 1):
            kernel = torch.empty(filters, channels, size if grid else 1, size)
            bound = 1 / math.sqrt(kernel[0].numel())
            self.kernels.append(nn.Parameter(kernel.uniform_(-bound, bound)))
        self.bias = nn.Parameter(torch.zeros(len(self.kernels) * filters))
        self.features = math.ceil(width / STRIDE) * self.bias.numel()

    def kernel(self) -> Tensor:
        """All kernels as one, each in the middle of zeros: (sizes * F, C, rows, 7).

        The zeros cost less than reading the states once per size, and even sizes need no padding of their own.
        """
        framed = []
        for kernel in self.kernels:
            size = kernel.shape[-1]
            margin = (LARGEST // 2 - size // 2, LARGEST // 2 - (size - 1) // 2)
            framed.append(pad(kernel, margin if self.rows == 1 else margin + margin))
        return torch.cat(framed)

    def forward(self, image: Tensor, kernel: Tensor) -> Tensor:
        if eager_on_cpu(image):
            features = LaidOut.apply(image, kernel, self.bias)
        else:
            padding = (self.rows // 2, LARGEST // 2)
            features = conv2d(image, kernel, self.bias, (1, STRIDE), padding).permute(
                0, 2, 3, 1
            )  # (B, S, W', sizes * F)
        return gelu(features).flatten(2)  # (B, S, W' * sizes * F)


class Parallel(nn.Module):
    """GELU(V [GELU(K_1 * x); ...; GELU(K_7 * x)] + c): F kernels of each size, at every fourth position of the width.

    row: 1 x N kernels, each token by itself. grid: N x N kernels over tokens and width, padded along the tokens.
    dilated: beside them sizes 2 to 7 that see every fourth unit of the width, at every sixteenth position.
    (B, C, S, W) -> (B, S, hidden), hidden = 22 (row) or 50 (grid). mask: (B, S).
    Parameters: the bundles' + (7 * F * ceil(W / 4) [+ 6 * F * ceil(W / 16)] + 1) * hidden.
    """

    def __init__(self, channels: int, width: int, form: str, filters: int, dilated: bool) -> None:
        super().__init__()
        self.grid = form == "grid"
        self.near = Bundle(channels, width, filters, 1, self.grid)
        self.far = Bundle(channels, math.ceil(width / STRIDE), filters, 2, self.grid) if dilated else None
        self.features = HIDDEN[form]
        self.dense = nn.Linear(self.near.features + (self.far.features if self.far else 0), self.features)

    def forward(self, image: Tensor, mask: Tensor) -> Tensor:
        if self.grid:  # neighbours meet: what stands behind the last real token must be nothing
            image = image.masked_fill(~mask[:, None, :, None], 0)
        near, far = self.near.kernel(), self.far.kernel() if self.far else None

        def find(part: Tensor) -> Tensor:
            features = self.near(part, near)
            if self.far:
                features = torch.cat([features, self.far(part[..., ::STRIDE], far)], dim=-1)
            return gelu(self.dense(features))  # (b, S, hidden)

        return in_slices(find, image.shape[2] * self.dense.in_features, image)

    def channel_norms(self) -> Tensor:
        """How strongly each channel is read: the norm of all kernels on it, (C,)."""
        kernels = [*self.near.kernels, *(self.far.kernels if self.far else ())]
        return torch.cat([kernel.detach().transpose(0, 1).flatten(1) for kernel in kernels], dim=1).norm(dim=1)


Trunk = Parallel | Inception | Xception | ShortXception | FullXception


def _deep_trunk(form: str, network: str, channels: int, width: int, tokens: bool) -> Trunk:
    """The network of form "inception" or "xception". tokens: whether it reads all tokens rather than [CLS] alone."""
    if form == "inception":
        return Inception(channels, width, tokens)
    if tokens:
        return Xception(channels, width)
    return FullXception(channels) if network == "full" else ShortXception(channels)


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
    image is one row, [CLS], and windows run along the width; "xception" is then BERTVision's, network = "short"
    or "full", with batch norms, and pooled puts the output of the encoder's own pooler before the layers, as channel 0.
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
        network: Literal["short", "full"] = "short",
        pooled: bool = False,
        dropout: Share = 0.0,
        positions: Literal["all", "cls"] = "all",
    ) -> None:
        super().__init__()
        parallel, tokens = form in ("row", "grid"), positions == "all"
        if form == "grid" and not tokens:
            raise Impossible("form", "'grid' looks at neighbouring tokens, and this head reads [CLS] alone; use 'row'")
        if not parallel and (dilated or filters != 8):
            raise Impossible("dilated" if dilated else "filters", f"only for form 'row' and 'grid', not {form!r}")
        if input == "states" and weights == "mean":
            raise Impossible("weights", "only for input 'pooled' and 'compressed'; 'states' takes the layers unmixed")
        if network == "full" and (form != "xception" or tokens):
            raise Impossible("network", "'full' is for form 'xception' on [CLS] alone")
        if pooled:
            check_cls(positions)
            if form != "xception" or input != "states":
                raise Impossible("pooled", "only for form 'xception' and input 'states'")
            self.reads = (POOLED, *range(layers))
        self.skip, self.dropout, self.pooled = skip, dropout, pooled
        self.pool = None if input == "states" else LayerPool(layers, weights)
        self.squeeze = Squeeze(1, width, COMPRESSED) if input == "compressed" else None
        channels = layers + pooled if input == "states" else 1
        if parallel:
            self.trunk: Trunk = Parallel(channels, width, form, filters, dilated)
        else:
            self.trunk = _deep_trunk(form, network, channels, width, tokens)
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
        read = dropout(torch.cat(features, dim=-1), self.dropout, self.training)  # (B, S, features + extras)
        return self.readout(read)

    def layer_weights(self) -> Tensor | None:
        """The learned mix; with input = "states" the norm of the first kernels that read each layer, as shares."""
        if self.pool is not None:
            return self.pool.layer_weights()
        norms = self.trunk.channel_norms()[self.pooled :]  # (L,)
        return norms / norms.sum()
