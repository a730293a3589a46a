"""Xception, a form of `conv`: convolutions split into one per channel and one across channels, with residual blocks."""

from dataclasses import dataclass
from itertools import pairwise

from torch import Tensor, nn
from torch.nn.functional import relu

from bertvision.heads.image import Stem, blank, channels_first, channels_last, highest


@dataclass(frozen=True)
class Plan:
    """How deep and how wide, in channels. stride: of the stem and of each entry and exit block, along the width."""

    stem: tuple[int, int]
    entry: tuple[int, ...]
    middle: int  # residual blocks at the last entry block's size
    exit: int | None  # one more block, whose first convolution keeps the size
    tail: tuple[int, ...]
    stride: int


SHORT = Plan(stem=(16, 32), entry=(64, 128, 256), middle=0, exit=None, tail=(320,), stride=4)
FULL = Plan(stem=(32, 64), entry=(128, 256, 728), middle=8, exit=1024, tail=(1536, 2048), stride=2)


def tokens_plan(width: int) -> Plan:
    """The plan for every token of a sequence. Channels grow with the encoder's width, as its own cost does."""
    c = max(8, width // 16)
    return Plan((c, c), (2 * c, 4 * c, 8 * c), middle=4, exit=None, tail=(16 * c, 24 * c), stride=4)


class Separable(nn.Module):
    """norm(P (K * x)): a reach x 3 kernel for each channel, then a dense layer across channels.

    (B, S, W, C) -> (B, S, W, out). Parameters: reach * 3 * C + C * out + 2 * out.
    """

    def __init__(self, channels: int, out: int, reach: int) -> None:
        super().__init__()
        self.depth = nn.Conv2d(channels, channels, (reach, 3), padding=(reach // 2, 1), groups=channels, bias=False)
        self.point = nn.Linear(channels, out, bias=False)
        self.norm = nn.LayerNorm(out)

    def forward(self, image: Tensor, mask: Tensor) -> Tensor:
        return self.norm(self.point(channels_last(self.depth(channels_first(blank(image, mask))))))


class Block(nn.Module):
    """x' + max(S_n(ReLU(... S_1(ReLU(x))))): separable convolutions and a residual; a stride shrinks the width of both.

    x' is x itself, or norm(P x) at every stride-th position where size or width change.
    """

    def __init__(self, sizes: tuple[int, ...], reach: int, stride: int = 1) -> None:
        super().__init__()
        self.stride = stride
        self.steps = nn.ModuleList(Separable(before, after, reach) for before, after in pairwise(sizes))
        changes = stride > 1 or sizes[0] != sizes[-1]
        self.shortcut = nn.Linear(sizes[0], sizes[-1], bias=False) if changes else None
        self.norm = nn.LayerNorm(sizes[-1]) if changes else None

    def forward(self, image: Tensor, mask: Tensor) -> Tensor:
        seen = image
        for step in self.steps:
            seen = step(relu(seen), mask)
        if self.stride > 1:
            seen = highest(seen, self.stride + 1, self.stride)
        if self.shortcut is None or self.norm is None:
            return image + seen
        return self.norm(self.shortcut(image[:, :, :: self.stride])) + seen


class Xception(nn.Module):
    """Two convolutions, residual blocks of separable convolutions, a tail of them: (B, C, S, W) -> (B, S, features).

    reach: tokens that one kernel spans; 3 for all tokens, 1 for [CLS] alone. All that is left of the width, a few
    positions, is handed on: a unit of the encoder has a meaning of its own, so positions are not averaged.
    """

    def __init__(self, channels: int, width: int, plan: Plan, reach: int) -> None:
        super().__init__()
        first, second = plan.stem
        self.stem = Stem(channels, first, reach, plan.stride)
        self.second = Stem(first, second, reach, stride=1)
        sizes = [second, *plan.entry]
        blocks = [Block((before, after, after), reach, plan.stride) for before, after in pairwise(sizes)]
        blocks += [Block((sizes[-1],) * 4, reach) for _ in range(plan.middle)]
        if plan.exit:
            blocks.append(Block((sizes[-1], sizes[-1], plan.exit), reach, plan.stride))
        self.blocks = nn.ModuleList(blocks)
        sizes = [plan.exit or sizes[-1], *plan.tail]
        self.tail = nn.ModuleList(Separable(before, after, reach) for before, after in pairwise(sizes))
        for _ in range(1 + len(plan.entry) + bool(plan.exit)):
            width = -(-width // plan.stride)
        self.features = width * sizes[-1]

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
