"""ResNet-18/34, normalisation by name."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import max_pool2d

from shoal.core.errors import UserError
from shoal.models.registry import Shape, image_shape, model, positive

# ---- norms ---------------------------------------------------------------------------------------
# Normalisation by name, shared by the deep networks.

Norm = Literal["group", "batch"]
Stem = Literal["3x3", "7x7"]


class Normal:
    """Makes a normalisation of so many channels; ``group`` has no running statistics."""

    def __init__(self, name: str, norm: str, groups: int) -> None:
        if norm not in ("group", "batch"):
            raise UserError(f"norm of model {name!r} must be 'group' or 'batch', not {norm!r}.")
        positive(name, "groups", (groups,))
        self.name, self.norm, self.groups = name, norm, groups

    def __call__(self, channels: int) -> nn.Module:
        if self.norm == "batch":
            return nn.BatchNorm2d(channels)
        if channels % self.groups:
            raise UserError(
                f"groups of model {self.name!r} must divide its width {channels}, but "
                f"{self.groups} does not."
            )
        return nn.GroupNorm(self.groups, channels)


def stem_of(name: str, stem: str) -> bool:
    """Whether the stem is the one for large images."""
    if stem not in ("3x3", "7x7"):
        raise UserError(f"stem of model {name!r} must be '3x3' or '7x7', not {stem!r}.")
    return stem == "7x7"


# ---- resnet --------------------------------------------------------------------------------------
# ResNet-18 and ResNet-34, for small and for large images, with group or batch normalisation.


class ResidualBlock(nn.Module):
    """``relu(x' + norm(conv(relu(norm(conv(x))))))``; x' is projected where the shape changes."""

    def __init__(self, before: int, after: int, stride: int, normal: Normal) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(before, after, 3, stride, padding=1, bias=False)
        self.norm1 = normal(after)
        self.conv2 = nn.Conv2d(after, after, 3, padding=1, bias=False)
        self.norm2 = normal(after)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or before != after:
            project = nn.Conv2d(before, after, 1, stride, bias=False)
            self.shortcut = nn.Sequential(project, normal(after))

    def forward(self, x: Tensor) -> Tensor:
        inner = self.norm2(self.conv2(torch.relu(self.norm1(self.conv1(x)))))
        return torch.relu(inner + self.shortcut(x))


class ResNet(nn.Module):
    """Four stages of blocks, widths ``width * (1, 2, 4, 8)``, mean over the map, the head.

    ``stem``: 3x3 of stride 1 without pooling, for images of about 32x32, or 7x7 of stride 2 and
    pooling by 2, as on ImageNet. ``norm``: ``group`` (``groups`` groups each) or ``batch``, whose
    running statistics are averaged like weights.

    Deviations: group normalisation is the default, because batch statistics fail on skewed
    clients (Hsieh et al., The Non-IID Data Quagmire of Decentralized Machine Learning, ICML
    2020); convolutions keep PyTorch's default initialisation.

    Reference: He et al., Deep Residual Learning for Image Recognition, CVPR 2016.
    """

    def __init__(
        self, name: str, shape: Shape, classes: int, blocks: Sequence[int], width: int,
        normal: Normal, stem: str,
    ) -> None:  # fmt: skip
        super().__init__()
        self.shape = image_shape(name, shape)
        positive(name, "width", (width,))
        self.large = stem_of(name, stem)
        kernel, stride, padding = (7, 2, 3) if self.large else (3, 1, 1)
        self.stem = nn.Conv2d(self.shape[0], width, kernel, stride, padding, bias=False)
        self.norm = normal(width)
        self.blocks = nn.ModuleList()
        before = width
        for stage, count in enumerate(blocks):
            after = width * 2**stage
            for index in range(count):
                step = 2 if stage > 0 and index == 0 else 1
                self.blocks.append(ResidualBlock(before, after, step, normal))
                before = after
        self.head = nn.Linear(before, classes)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        maps = torch.relu(self.norm(self.stem(x.reshape(x.shape[0], *self.shape))))
        if self.large:
            maps = max_pool2d(maps, 3, 2, 1)
        for block in self.blocks:
            maps = block(maps)
        features = maps.mean((2, 3))
        return self.head(features), features


@model("resnet18")
class ResNet18(ResNet):
    """ResNet-18 for small images: 11,173,962 parameters on CIFAR-10. See :class:`ResNet`."""

    def __init__(self, shape: Shape, classes: int, *, groups: int = 2, width: int = 64,
                 norm: Norm = "group", stem: Stem = "3x3") -> None:  # fmt: skip
        normal = Normal("resnet18", norm, groups)
        super().__init__("resnet18", shape, classes, (2, 2, 2, 2), width, normal, stem)


@model("resnet34")
class ResNet34(ResNet):
    """ResNet-34 for small images: 21,282,122 parameters on CIFAR-10. See :class:`ResNet`."""

    def __init__(self, shape: Shape, classes: int, *, groups: int = 2, width: int = 64,
                 norm: Norm = "group", stem: Stem = "3x3") -> None:  # fmt: skip
        normal = Normal("resnet34", norm, groups)
        super().__init__("resnet34", shape, classes, (3, 4, 6, 3), width, normal, stem)


@model("resnet18_imagenet")
class ResNet18ImageNet(ResNet):
    """ResNet-18 as on ImageNet, 7x7 stem and batch normalisation: 11,689,512 with 1,000 classes.

    The network of the SPECIAL paper, to judge by its memory table.
    """

    def __init__(self, shape: Shape, classes: int, *, groups: int = 2, width: int = 64,
                 norm: Norm = "batch", stem: Stem = "7x7") -> None:  # fmt: skip
        normal = Normal("resnet18_imagenet", norm, groups)
        super().__init__("resnet18_imagenet", shape, classes, (2, 2, 2, 2), width, normal, stem)
