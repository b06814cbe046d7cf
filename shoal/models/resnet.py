"""ResNet-18 with group normalisation."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from shoal.errors import UserError
from shoal.models.registry import Shape, image_shape, model, positive


class Block(nn.Module):
    """``relu(x' + norm(conv(relu(norm(conv(x))))))``; x' is projected where the shape changes."""

    def __init__(self, before: int, after: int, stride: int, groups: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(before, after, 3, stride, padding=1, bias=False)
        self.norm1 = nn.GroupNorm(groups, after)
        self.conv2 = nn.Conv2d(after, after, 3, padding=1, bias=False)
        self.norm2 = nn.GroupNorm(groups, after)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or before != after:
            project = nn.Conv2d(before, after, 1, stride, bias=False)
            self.shortcut = nn.Sequential(project, nn.GroupNorm(groups, after))

    def forward(self, x: Tensor) -> Tensor:
        inner = self.norm2(self.conv2(torch.relu(self.norm1(self.conv1(x)))))
        return torch.relu(inner + self.shortcut(x))


@model("resnet18")
class ResNet18(nn.Module):
    """Four stages of two blocks, widths ``width * (1, 2, 4, 8)``, mean over the map, the head.

    A 3x3 stem of stride 1 without pooling, as for 32x32 images (11,173,962 parameters on
    CIFAR-10). ``groups`` is the number of groups of every GroupNorm.

    Deviations: group for batch normalisation, because batch statistics fail on skewed clients
    (Hsieh et al., The Non-IID Data Quagmire of Decentralized Machine Learning, ICML 2020);
    convolutions keep PyTorch's default initialisation.

    Reference: He et al., Deep Residual Learning for Image Recognition, CVPR 2016.
    """

    def __init__(self, shape: Shape, classes: int, *, groups: int = 2, width: int = 64) -> None:
        super().__init__()
        self.shape = image_shape("resnet18", shape)
        positive("resnet18", "groups", (groups,))
        positive("resnet18", "width", (width,))
        if width % groups:
            raise UserError(
                f"groups of model 'resnet18' must divide its width {width}, but {groups} does not."
            )
        self.stem = nn.Conv2d(self.shape[0], width, 3, padding=1, bias=False)
        self.norm = nn.GroupNorm(groups, width)
        blocks, before = [], width
        for stage in range(4):
            after = width * 2**stage
            blocks += [Block(before, after, 1 if stage == 0 else 2, groups)]
            blocks += [Block(after, after, 1, groups)]
            before = after
        self.blocks = nn.ModuleList(blocks)
        self.head = nn.Linear(before, classes)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        maps = torch.relu(self.norm(self.stem(x.reshape(x.shape[0], *self.shape))))
        for block in self.blocks:
            maps = block(maps)
        features = maps.mean((2, 3))
        return self.head(features), features
