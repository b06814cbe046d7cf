"""The small convolutional networks of the federated literature, and one for any image."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn.functional import max_pool2d

from shoal.errors import UserError
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


@model("emnist_cnn")
class EmnistCNN(nn.Module):
    """Two 3x3 convolutions (32, 64), pooled once by 2, a layer of 128, the head.

    1,206,590 parameters on 28x28 images with 62 classes, as in Reddi et al., Adaptive Federated
    Optimization, ICLR 2021, appendix C. The least image is 6x6.

    Deviations: no dropout.
    """

    def __init__(self, shape: Shape, classes: int) -> None:
        super().__init__()
        self.shape = image_shape("emnist_cnn", shape, 6)
        channels, height, width = self.shape
        self.conv1 = nn.Conv2d(channels, 32, 3)
        self.conv2 = nn.Conv2d(32, 64, 3)
        self.fc = nn.Linear(64 * ((height - 4) // 2) * ((width - 4) // 2), 128)
        self.head = nn.Linear(128, classes)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        maps = torch.relu(self.conv1(x.reshape(x.shape[0], *self.shape)))
        maps = max_pool2d(torch.relu(self.conv2(maps)), 2)
        features = torch.relu(self.fc(maps.flatten(1)))
        return self.head(features), features


class ThreeConvs(nn.Module):
    """Three padded 3x3 convolutions, each pooled by 2, one layer, the head."""

    def __init__(self, name: str, shape: Shape, classes: int, widths: Sequence[int], hidden: int):
        super().__init__()
        self.shape = image_shape(name, shape, 8)
        channels, height, width = self.shape
        sizes = (channels, *positive(name, "widths", tuple(widths)))
        if len(sizes) != 4:
            raise UserError(f"widths of model {name!r} must be 3 numbers, not {list(widths)}.")
        self.convs = nn.ModuleList(nn.Conv2d(i, o, 3, padding=1) for i, o in pairwise(sizes))
        self.fc = nn.Linear(sizes[-1] * (height // 8) * (width // 8), hidden)
        self.head = nn.Linear(hidden, classes)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        maps = x.reshape(x.shape[0], *self.shape)
        for conv in self.convs:
            maps = max_pool2d(torch.relu(conv(maps)), 2)
        features = torch.relu(self.fc(maps.flatten(1)))
        return self.head(features), features


@model("svhn_cnn")
class SvhnCNN(ThreeConvs):
    """Three padded 3x3 convolutions (32, 64, 128), each pooled by 2, a layer of 256, the head.

    620,362 parameters on 32x32 colour images. The dynamic-arrival paper's SVHN network is "a
    small CNN" whose sizes it does not print; these are ours.
    """

    def __init__(self, shape: Shape, classes: int) -> None:
        super().__init__("svhn_cnn", shape, classes, (32, 64, 128), 256)


@model("cifar10_cnn")
class Cifar10CNN(ThreeConvs):
    """Three padded 3x3 convolutions, each pooled by 2, 4x4x64 maps, a layer of 512, the head.

    586,250 parameters on CIFAR-10. The CIFAR-10-CNN of the FedAgg paper, which prints neither the
    channels of the first two convolutions (32 and 64 here) nor the dropout (none here).
    """

    def __init__(self, shape: Shape, classes: int, *, widths: Sequence[int] = (32, 64, 64)) -> None:
        super().__init__("cifar10_cnn", shape, classes, widths, 512)
