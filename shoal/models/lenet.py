"""LeNet-5."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn.functional import max_pool2d

from shoal.models.registry import Shape, image_shape, model, positive


@model("lenet5")
class LeNet5(nn.Module):
    """Two 5x5 convolutions (6, 16), each pooled by 2, then layers of 120 and 84 and the head.

    Images below 32x32 are padded by 2 in the first convolution, so that 28x28 and 32x32 both end
    in 5x5 maps (61,706 parameters on MNIST). The least image is 12x12. ``widths`` are the channels
    of the convolutions; the FedAgg paper's have 32 in the second.

    Deviations: ReLU for tanh, maximum for trainable averages, full connections between the
    convolutions and a linear head for radial basis functions, as is usual today.

    Reference: LeCun et al., Gradient-Based Learning Applied to Document Recognition, 1998.
    """

    def __init__(self, shape: Shape, classes: int, *, widths: Sequence[int] = (6, 16)) -> None:
        super().__init__()
        first, second = positive("lenet5", "widths", tuple(widths)[:2])
        self.shape = image_shape("lenet5", shape, 12)
        channels, height, width = self.shape
        padding = 2 if min(height, width) < 32 else 0
        sides = [((side + 2 * padding - 4) // 2 - 4) // 2 for side in (height, width)]
        self.conv1 = nn.Conv2d(channels, first, 5, padding=padding)
        self.conv2 = nn.Conv2d(first, second, 5)
        self.fc1 = nn.Linear(second * sides[0] * sides[1], 120)
        self.fc2 = nn.Linear(120, 84)
        self.head = nn.Linear(84, classes)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        maps = max_pool2d(torch.relu(self.conv1(x.reshape(x.shape[0], *self.shape))), 2)
        maps = max_pool2d(torch.relu(self.conv2(maps)), 2)
        features = torch.relu(self.fc2(torch.relu(self.fc1(maps.flatten(1)))))
        return self.head(features), features
