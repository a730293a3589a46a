"""BERTVision's networks on the [CLS] column: a short and a full Xception along the width, layers as channels.

They are the paper's to the unit: 1 x 3 convolutions without bias, each followed by a batch norm (published counts
include the means and variances that it keeps), average pooling, and a mean over what is left of the width.
"""

from collections.abc import Iterable
from itertools import pairwise

from torch import Tensor, nn
from torch.nn.functional import relu


def conv(channels: int, out: int, size: int = 3, stride: int = 1) -> nn.Sequential:
    """norm(K * x): (B, C, W) -> (B, out, ceil(W / stride)). Numbers: size * C * out + 4 * out."""
    padding = size // 2
    return nn.Sequential(nn.Conv1d(channels, out, size, stride, padding, bias=False), nn.BatchNorm1d(out))


def separable(channels: int, out: int) -> nn.Sequential:
    """norm(P (K * x)), a kernel per channel, then all channels at each position. Numbers: (3 + out) * C + 4 * out."""
    return nn.Sequential(
        nn.Conv1d(channels, channels, 3, padding=1, groups=channels, bias=False),
        nn.Conv1d(channels, out, 1, bias=False),
        nn.BatchNorm1d(out),
    )


def halved() -> nn.AvgPool1d:
    """The mean of three neighbours, at every second position; fewer at the ends."""
    return nn.AvgPool1d(3, stride=2, padding=1, count_include_pad=False)


class Block(nn.Module):
    """x' + S_n(ReLU(... S_1(ReLU(x)))), separable convolutions through `sizes` channels.

    shrinks: the mean of three at every second position, and x' = norm(P x) there; otherwise x' = x.
    """

    def __init__(self, sizes: Iterable[int], shrinks: bool) -> None:
        super().__init__()
        first, *_, last = sizes = list(sizes)
        steps = [part for before, after in pairwise(sizes) for part in (nn.ReLU(), separable(before, after))]
        self.steps = nn.Sequential(*steps, *([halved()] if shrinks else []))
        self.shortcut = conv(first, last, 1, stride=2) if shrinks else nn.Identity()

    def forward(self, image: Tensor) -> Tensor:
        return self.shortcut(image) + self.steps(image)


class ClsNetwork(nn.Module):
    """Base of both: states of [CLS], (B, C, 1, W) -> (B, 1, features), the mean over the width."""

    features: int
    stem: nn.Sequential
    rest: nn.Sequential

    def forward(self, image: Tensor, mask: Tensor) -> Tensor:
        return self.rest(relu(self.stem(image.squeeze(2)))).mean(dim=2).unsqueeze(1)

    def channel_norms(self) -> Tensor:
        """How strongly each channel is read: the norm of all kernels on it, (C,)."""
        return next(self.stem.parameters()).detach().transpose(0, 1).flatten(1).norm(dim=1)


class ShortXception(ClsNetwork):
    """Convolutions of 64 (every third position) and 128, then one residual block of 256 and 512.

    267,010 numbers with a read-out of 2 on 26 channels.
    """

    features = 512

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.stem = conv(channels, 64, stride=3)
        self.rest = nn.Sequential(conv(64, 128), nn.ReLU(), Block((128, 256, 512), shrinks=True))


class FullXception(ClsNetwork):
    """Xception in its original size: entry blocks to 728 channels, eight middle blocks, an exit to 2,048.

    20,716,634 numbers with a read-out of 2 on 26 channels.
    """

    features = 2048

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.stem = conv(channels, 32, stride=3)
        entry = [Block((before, after, after), shrinks=True) for before, after in pairwise((64, 128, 256, 728))]
        middle = [Block((728,) * 4, shrinks=False) for _ in range(8)]
        last = [
            Block((728, 728, 1024), shrinks=True),
            separable(1024, 1536),
            nn.ReLU(),
            separable(1536, 2048),
            nn.ReLU(),
        ]
        self.rest = nn.Sequential(conv(32, 64), nn.ReLU(), *entry, *middle, *last)
