"""Logistic regression, MLP, the literature's small CNNs, LeNet-5."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from math import prod
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn.functional import interpolate, max_pool2d

from shoal.core.errors import UserError
from shoal.models.registry import Shape, image_shape, model, positive

# ---- linear --------------------------------------------------------------------------------------
# Multinomial logistic regression.


@model("linear")
class Linear(nn.Module):
    """``logits = W x + b`` of the flattened sample; the features are the logits."""

    def __init__(self, shape: Shape, classes: int) -> None:
        super().__init__()
        self.head = nn.Linear(prod(shape), classes)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        logits = self.head(x.flatten(1))
        return logits, logits


# ---- mlp -----------------------------------------------------------------------------------------
# Fully connected networks.


@model("mlp")
class MLP(nn.Module):
    """ReLU layers of the widths ``hidden`` on the flattened sample, then the head.

    The default is the "2NN" of McMahan et al., AISTATS 2017: two layers of 200 (199,210
    parameters on MNIST). One width may be given as a number.
    """

    def __init__(self, shape: Shape, classes: int, *, hidden: int | Sequence[int] = (200, 200)):
        super().__init__()
        given = (hidden,) if isinstance(hidden, int) else tuple(hidden)
        widths = (prod(shape), *positive("mlp", "hidden", given))
        self.body = nn.ModuleList(nn.Linear(i, o) for i, o in pairwise(widths))
        self.head = nn.Linear(widths[-1], classes)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        features = x.flatten(1)
        for layer in self.body:
            features = torch.relu(layer(features))
        return self.head(features), features


@model("tabular")
class Tabular(MLP):
    """A network for tables: every category is embedded, then ReLU layers ``hidden`` and the head.

    ``embedded`` are the categories of the inputs, each the first of its columns of 0 and 1 and how
    many there are; a table brings its own. A category becomes ``width`` numbers, learnt for each of
    its values, or as many as it has values if that is fewer; one that no training row had is 0.
    """

    def __init__(
        self,
        shape: Shape,
        classes: int,
        *,
        hidden: int | Sequence[int] = (32,),
        width: int = 4,
        embedded: Sequence[Sequence[int]] = (),
    ) -> None:
        positive("tabular", "width", (width,))
        places = [(int(first), int(size)) for first, size in embedded]
        inside = {first + i for first, size in places for i in range(size)}
        if inside and max(inside) >= prod(shape):
            raise UserError(f"embedded of model 'tabular' names input {max(inside)}, and there are "
                            f"{prod(shape)}, counted from 0.")  # fmt: skip
        others = dict.fromkeys(i for i in range(prod(shape)) if i not in inside)
        starts = [i for i in others if i - 1 not in others]
        ends = [i + 1 for i in others if i + 1 not in others]
        wide = len(others) + sum(min(width, size) for _, size in places)
        super().__init__((wide,), classes, hidden=hidden)
        self.places = places
        self.runs = list(zip(starts, ends, strict=True))  # of inputs that are no category
        self.embed = nn.ModuleList(
            nn.Linear(size, min(width, size), bias=False) for _, size in places
        )

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        x = x.flatten(1)
        parts = [x[:, first : first + size] for first, size in self.places]
        found = [layer(part) for layer, part in zip(self.embed, parts, strict=True)]
        runs = [x[:, first:end] for first, end in self.runs]
        return super().forward(torch.cat([*runs, *found], 1))


# ---- cnn -----------------------------------------------------------------------------------------
# The small convolutional networks of the federated literature, and one for any image.


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


@model("small_unet")
class SmallUNet(nn.Module):
    """A class per pixel: two padded 3x3 convolutions (``width``, twice that), the second on maps
    pooled by 2 and enlarged again, one on both, and a 1x1 head; ``logits`` [rows, classes, H, W].

    The sides of an image must be even. A two-level form of Ronneberger et al., U-Net, 2015.
    """

    dense: ClassVar[bool] = True

    def __init__(self, shape: Shape, classes: int, *, width: int = 16) -> None:
        super().__init__()
        self.shape = image_shape("small_unet", shape, 2)
        if self.shape[1] % 2 or self.shape[2] % 2:
            raise UserError(f"model 'small_unet' needs images with even sides, not {self.shape}.")
        positive("small_unet", "width", (width,))
        self.outer = nn.Conv2d(self.shape[0], width, 3, padding=1)
        self.inner = nn.Conv2d(width, 2 * width, 3, padding=1)
        self.joined = nn.Conv2d(3 * width, width, 3, padding=1)
        self.head = nn.Conv2d(width, classes, 1)

    def forward(self, x: Tensor) -> Tensor:
        fine = torch.relu(self.outer(x.reshape(x.shape[0], *self.shape)))
        coarse = interpolate(torch.relu(self.inner(max_pool2d(fine, 2))), scale_factor=2.0)
        logits: Tensor = self.head(torch.relu(self.joined(torch.cat([fine, coarse], 1))))
        return logits


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


# ---- lenet ---------------------------------------------------------------------------------------
# LeNet-5.


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
