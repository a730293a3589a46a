"""The deep forms of `conv`: Inception and Xception over an image of tokens x width, and BERTVision's own on [CLS].

Over tokens the channels come last, (B, S, W, C): dense layers and norms over the channels then need no copy, and
convolutions run twice as fast on a CPU. No norm includes more than one position, so padding changes nothing.

On the [CLS] column, layers as channels, the networks are the paper's to the unit: 1 x 3 convolutions along the width
without bias, each followed by a batch norm (published counts include the means and variances that it keeps), average
pooling, and a mean over what is left of the width.
"""

from collections.abc import Iterable
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn.functional import max_pool2d, relu

STRIDE = 4  # along the width


def blank(image: Tensor, mask: Tensor) -> Tensor:
    """The image (B, S, W, C) with zeros where there is no token, as if the sequence ended there. mask: (B, S)."""
    return image.masked_fill(~mask[:, :, None, None], 0)


def channels_first(image: Tensor) -> Tensor:
    """(B, S, W, C) -> (B, C, S, W), a view: torch's convolutions know it as memory format channels_last."""
    return image.permute(0, 3, 1, 2)


def channels_last(image: Tensor) -> Tensor:
    """(B, C, S, W) -> (B, S, W, C), a view."""
    return image.permute(0, 2, 3, 1)


def highest(image: Tensor, size: int, stride: int) -> Tensor:
    """The maximum of `size` (odd) neighbours along the width: (B, S, W, C) -> (B, S, ceil(W / stride), C)."""
    pooled = max_pool2d(channels_first(image), (1, size), stride=(1, stride), padding=(0, size // 2))
    return channels_last(pooled)


class Stem(nn.Module):
    """ReLU(norm(K * x)), K over `reach` tokens and max(3, 2 * stride - 1) of the width.

    (B, S, W, C) -> (B, S, ceil(W / stride), out). Parameters: C * reach * max(3, 2 * stride - 1) * out + 2 * out.
    """

    def __init__(self, channels: int, out: int, reach: int, stride: int) -> None:
        super().__init__()
        size = max(3, 2 * stride - 1)
        padding = (reach // 2, size // 2)
        self.conv = nn.Conv2d(channels, out, (reach, size), stride=(1, stride), padding=padding, bias=False)
        self.norm = nn.LayerNorm(out)

    def forward(self, image: Tensor, mask: Tensor) -> Tensor:
        return relu(self.norm(channels_last(self.conv(channels_first(blank(image, mask))))))

    def channel_norms(self) -> Tensor:
        """How strongly each channel is read: the norm of all kernels on it, (C,)."""
        return self.conv.weight.detach().transpose(0, 1).flatten(1).norm(dim=1)


class Window(nn.Module):
    """ReLU(K * ReLU(P x)): a dense layer to few channels, then size x size (1 x size for a single column) windows."""

    def __init__(self, channels: int, few: int, out: int, size: int, deep: bool) -> None:
        super().__init__()
        reach = size if deep else 1
        self.point = nn.Linear(channels, few)
        self.conv = nn.Conv2d(few, out, (reach, size), padding=(reach // 2, size // 2))

    def forward(self, image: Tensor, mask: Tensor) -> Tensor:
        few = blank(relu(self.point(image)), mask)  # (B, S, W, few)
        return relu(channels_last(self.conv(channels_first(few))))  # (B, S, W, out)


class InceptionBlock(nn.Module):
    """C -> O channels: O/4 from a dense layer, O/2 from 3 x 3 windows, O/8 from 5 x 5, O/8 from a maximum.

    (B, S, W, C) -> (B, S, W, O), normalised over the channels. The windows look at O/4 and O/16 channels, the
    maximum is that of three neighbours along the width.
    """

    def __init__(self, channels: int, out: int, deep: bool) -> None:
        super().__init__()
        half, quarter, eighth = out // 2, out // 4, out // 8
        self.one = nn.Linear(channels, out - half - 2 * eighth)
        self.three = Window(channels, quarter, half, 3, deep)
        self.five = Window(channels, eighth // 2, eighth, 5, deep)
        self.maximum = nn.Linear(channels, eighth)
        self.norm = nn.LayerNorm(out)

    def forward(self, image: Tensor, mask: Tensor) -> Tensor:
        maximum = relu(self.maximum(highest(image, 3, stride=1)))
        branches = [relu(self.one(image)), self.three(image, mask), self.five(image, mask), maximum]
        return self.norm(torch.cat(branches, dim=-1))  # (B, S, W, O)


class Inception(nn.Module):
    """A strided convolution, then blocks of 2c, 8c, 16c, 16c, 16c channels, c = max(8, H / 16), on ever less width.

    (B, C, S, W) -> (B, S, features). The width falls to a quarter in the stem and before each of the first three
    blocks. deep: windows span tokens and width; otherwise the width only, for the [CLS] column.
    """

    def __init__(self, channels: int, width: int, deep: bool) -> None:
        super().__init__()
        unit = max(8, width // 16)
        self.stem = Stem(channels, unit, 3 if deep else 1, STRIDE)
        sizes = [unit, 2 * unit, 8 * unit, 16 * unit, 16 * unit, 16 * unit]
        self.blocks = nn.ModuleList(InceptionBlock(before, after, deep) for before, after in pairwise(sizes))
        for _ in range(4):
            width = -(-width // STRIDE)
        self.features = width * sizes[-1]

    def forward(self, image: Tensor, mask: Tensor) -> Tensor:
        image = self.stem(channels_last(image), mask)
        for number, block in enumerate(self.blocks):
            if number < 3:
                image = highest(image, STRIDE + 1, STRIDE)
            image = block(image, mask)
        return image.flatten(2)  # (B, S, W * O)

    def channel_norms(self) -> Tensor:
        """How strongly each channel is read, (C,)."""
        return self.stem.channel_norms()


class Separable(nn.Module):
    """norm(P (K * x)): a 3 x 3 kernel for each channel, then a dense layer across channels.

    (B, S, W, C) -> (B, S, W, out). Parameters: 9 * C + C * out + 2 * out.
    """

    def __init__(self, channels: int, out: int) -> None:
        super().__init__()
        self.depth = nn.Conv2d(channels, channels, 3, padding=1, groups=channels, bias=False)
        self.point = nn.Linear(channels, out, bias=False)
        self.norm = nn.LayerNorm(out)

    def forward(self, image: Tensor, mask: Tensor) -> Tensor:
        return self.norm(self.point(channels_last(self.depth(channels_first(blank(image, mask))))))


class XceptionBlock(nn.Module):
    """x' + max(S_n(ReLU(... S_1(ReLU(x))))): separable convolutions and a residual; a stride shrinks the width of both.

    x' is x itself, or norm(P x) at every stride-th position where size or width change.
    """

    def __init__(self, sizes: tuple[int, ...], stride: int = 1) -> None:
        super().__init__()
        self.stride = stride
        self.steps = nn.ModuleList(Separable(before, after) for before, after in pairwise(sizes))
        changes = stride > 1 or sizes[0] != sizes[-1]
        self.shortcut = nn.Linear(sizes[0], sizes[-1], bias=False) if changes else None
        self.norm = nn.LayerNorm(sizes[-1]) if changes else None

    def forward(self, image: Tensor, mask: Tensor) -> Tensor:
        residual = image
        for step in self.steps:
            residual = step(relu(residual), mask)
        if self.stride > 1:
            residual = highest(residual, self.stride + 1, self.stride)
        if self.shortcut is None or self.norm is None:
            return image + residual
        return self.norm(self.shortcut(image[:, :, :: self.stride])) + residual


class Xception(nn.Module):
    """Two convolutions of c channels, residual blocks of 2c, 4c, 8c and four of 8c, a tail of 16c, 24c; c = H / 16.

    (B, C, S, W) -> (B, S, features), c at least 8: channels grow with the encoder's width, as its own cost does. The
    width falls to a quarter in the stem and in each of the first three blocks. All that is left of it, a few positions,
    is handed on: a unit of the encoder has a meaning of its own, so positions are not averaged.
    """

    def __init__(self, channels: int, width: int) -> None:
        super().__init__()
        c = max(8, width // 16)
        self.stem = Stem(channels, c, 3, STRIDE)
        self.second = Stem(c, c, 3, stride=1)
        sizes = [c, 2 * c, 4 * c, 8 * c]
        blocks = [XceptionBlock((before, after, after), STRIDE) for before, after in pairwise(sizes)]
        self.blocks = nn.ModuleList([*blocks, *(XceptionBlock((8 * c,) * 4) for _ in range(4))])
        self.tail = nn.ModuleList([Separable(8 * c, 16 * c), Separable(16 * c, 24 * c)])
        for _ in range(4):
            width = -(-width // STRIDE)
        self.features = width * 24 * c

    def forward(self, image: Tensor, mask: Tensor) -> Tensor:
        image = self.second(self.stem(channels_last(image), mask), mask)
        for block in self.blocks:
            image = block(image, mask)
        for step in self.tail:
            image = relu(step(image, mask))
        return image.flatten(2)  # (B, S, W * C)

    def channel_norms(self) -> Tensor:
        """How strongly each channel is read, (C,)."""
        return self.stem.channel_norms()


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
