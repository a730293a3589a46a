"""Inception, a form of `conv`: blocks that look through windows of several sizes at once."""

from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn.functional import relu

from bertvision.heads.image import Stem, blank, channels_first, channels_last, highest

STRIDE = 4


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


class Block(nn.Module):
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
        seen = [relu(self.one(image)), self.three(image, mask), self.five(image, mask), maximum]
        return self.norm(torch.cat(seen, dim=-1))  # (B, S, W, O)


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
        self.blocks = nn.ModuleList(Block(before, after, deep) for before, after in pairwise(sizes))
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
