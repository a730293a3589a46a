"""States as an image of tokens x width: what the deep forms of `conv` have in common.

Inside them the channels stand last, (B, S, W, C): dense layers and norms over the channels then need no copy, and
convolutions run twice as fast on a CPU. No norm looks beyond one position, so no token feels how long the batch is.
"""

from torch import Tensor, nn
from torch.nn.functional import max_pool2d, relu


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
