"""Normalisation by name, shared by the deep networks."""

from __future__ import annotations

from typing import Literal

from torch import nn

from shoal.errors import UserError
from shoal.models.registry import positive

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
