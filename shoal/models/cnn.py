"""The small convolutional networks of the federated literature, and one for any image."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn.functional import max_pool2d

from shoal.models.registry import Shape, image_shape, model, positive


@model("mnist_cnn")
class MnistCNN(nn.Module):
    """Two padded 5x5 convolutions (32, 64), each pooled by 2, a layer of 512, the head.

    1,663,370 parameters on MNIST, as in McMahan et al., AISTATS 2017, section 3. Any image of at
    least 4x4 fits.
    """

    def __init__(self, shape: Shape, classes: int) -> None:
        super().__init__()
        self.shape = image_shape("mnist_cnn", shape, 4)
        channels, height, width = self.shape
        self.conv1 = nn.Conv2d(channels, 32, 5, padding=2)
        self.conv2 = nn.Conv2d(32, 64, 5, padding=2)
        self.fc = nn.Linear(64 * (height // 4) * (width // 4), 512)
        self.head = nn.Linear(512, classes)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        maps = max_pool2d(torch.relu(self.conv1(x.reshape(x.shape[0], *self.shape))), 2)
        maps = max_pool2d(torch.relu(self.conv2(maps)), 2)
        features = torch.relu(self.fc(maps.flatten(1)))
        return self.head(features), features


@model("cifar_cnn")
class CifarCNN(nn.Module):
    """Two 5x5 convolutions of 64 channels, each pooled by 2, layers of 384 and 192, the head.

    797,962 parameters on CIFAR-10. The least image is 16x16.

    Deviations: McMahan et al., AISTATS 2017 took the TensorFlow tutorial's network (padded
    convolutions, overlapping 3x3 pooling, local response normalisation, 24x24 crops); this is the
    plainer form that later papers use, for example Acar et al., FedDyn, ICLR 2021.
    """

    def __init__(self, shape: Shape, classes: int) -> None:
        super().__init__()
        self.shape = image_shape("cifar_cnn", shape, 16)
        channels, height, width = self.shape
        sides = [((side - 4) // 2 - 4) // 2 for side in (height, width)]
        self.conv1 = nn.Conv2d(channels, 64, 5)
        self.conv2 = nn.Conv2d(64, 64, 5)
        self.fc1 = nn.Linear(64 * sides[0] * sides[1], 384)
        self.fc2 = nn.Linear(384, 192)
        self.head = nn.Linear(192, classes)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        maps = max_pool2d(torch.relu(self.conv1(x.reshape(x.shape[0], *self.shape))), 2)
        maps = max_pool2d(torch.relu(self.conv2(maps)), 2)
        features = torch.relu(self.fc2(torch.relu(self.fc1(maps.flatten(1)))))
        return self.head(features), features


@model("small_cnn")
class SmallCNN(nn.Module):
    """Padded 3x3 convolutions of the given ``widths``, a layer of ``hidden``, the head.

    Each convolution is followed by ReLU and pooling by 2 along every side that is still at least
    2 long, so any image fits, down to one pixel.
    """

    def __init__(
        self, shape: Shape, classes: int, *, widths: Sequence[int] = (16, 32), hidden: int = 64
    ) -> None:
        super().__init__()
        self.shape = image_shape("small_cnn", shape)
        channels, height, width = self.shape
        self.convs = nn.ModuleList()
        self.pools: list[tuple[int, int]] = []
        for out in positive("small_cnn", "widths", tuple(widths)):
            self.convs.append(nn.Conv2d(channels, out, 3, padding=1))
            pool = (min(2, height), min(2, width))
            self.pools.append(pool)
            channels, height, width = out, height // pool[0], width // pool[1]
        positive("small_cnn", "hidden", (hidden,))
        self.fc = nn.Linear(channels * height * width, hidden)
        self.head = nn.Linear(hidden, classes)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        maps = x.reshape(x.shape[0], *self.shape)
        for conv, pool in zip(self.convs, self.pools, strict=True):
            maps = max_pool2d(torch.relu(conv(maps)), pool)
        features = torch.relu(self.fc(maps.flatten(1)))
        return self.head(features), features
