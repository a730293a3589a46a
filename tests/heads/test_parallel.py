"""The convolution that is laid out by hand is torch's: in what it gives, and in all three gradients."""

import pytest
import torch
from torch.nn.functional import conv2d

from bertvision.heads.parallel import LARGEST, STRIDE, LaidOut


@pytest.mark.parametrize("width", [3, 29, 30, 32])
@pytest.mark.parametrize(("channels", "rows"), [(1, 7), (3, 7), (1, 1), (2, 1)])
def test_it_is_the_convolution_of_torch(channels, rows, width):
    draw = torch.Generator().manual_seed(1)
    shapes = (2, channels, 5, width), (4, channels, rows, LARGEST), (4,)
    inputs = [torch.randn(shape, generator=draw, dtype=torch.double).requires_grad_() for shape in shapes]
    found = LaidOut.apply(*inputs)
    wanted = conv2d(*inputs, (1, STRIDE), (rows // 2, LARGEST // 2)).permute(0, 2, 3, 1)
    torch.testing.assert_close(found, wanted)
    from_above = torch.randn(found.shape, generator=draw, dtype=torch.double)
    for ours, theirs in zip(*(torch.autograd.grad(each, inputs, from_above) for each in (found, wanted)), strict=True):
        torch.testing.assert_close(ours, theirs)


def test_states_that_do_not_learn_cost_no_gradient():
    image, kernel = torch.randn(1, 1, 4, 16), torch.randn(2, 1, 7, LARGEST, requires_grad=True)
    LaidOut.apply(image, kernel, torch.zeros(2, requires_grad=True)).sum().backward()
    assert image.grad is None
    assert kernel.grad is not None
