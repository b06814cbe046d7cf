"""Images cropped, mirrored and cut out at random when they are trained on.

A batch's key says how, row by row, so that every engine sees the same images. What only looks at a
client's rows (scores, questions, gradients over all local data) sees them as they are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from shoal.core.errors import UserError
from shoal.core.layers.drawing import LayerDraws
from shoal.core.types import Batch

Asked = Literal["none"] | Sequence[Literal["flip"] | Mapping[Literal["crop", "cutout"], int]]


@dataclass(frozen=True)
class Augment:
    """``crop``: a window of the image's size, out of the image with so many zeros on every side;
    ``flip``: mirrored left to right half of the time; ``cutout``: a square of zeros with such sides
    around any pixel. In this order.

    >>> Augment.of([{"crop": 4}, "flip"])
    Augment(crop=4, flip=True, cutout=0)
    """

    crop: int = 0
    flip: bool = False
    cutout: int = 0

    @classmethod
    def of(cls, asked: Asked) -> Augment | None:
        """As a config says it."""
        if asked == "none":
            return None
        given: dict[str, int] = {}
        for one in asked:
            given.update({"flip": 1} if isinstance(one, str) else one.items())
        return cls(given.get("crop", 0), "flip" in given, given.get("cutout", 0))

    def check(self, shape: Sequence[int] | None, kind: torch.dtype) -> None:
        """Refuse samples that are no images, and sizes that leave nothing of them."""
        if shape is None or len(shape) != 3 or not kind.is_floating_point:
            form = "of unknown shape" if shape is None else f"of shape {tuple(shape)}"
            raise UserError(
                f"local.augment is for images (channels, height, width), and these samples are "
                f"{form}; load them with data.flat: false, or write augment: none"
            )
        least = min(shape[1:])
        for name, size in (("crop", self.crop), ("cutout", self.cutout)):
            if size >= least:
                raise UserError(
                    f"local.augment: {name} is {size}, and images of {shape[1]}x{shape[2]} need "
                    f"less than {least}"
                )

    def __call__(self, batch: Batch) -> Batch:
        """The batch with other images."""
        assert batch.key is not None, "batches of local training have a key"
        x = batch.x
        rows, channels, height, width = x.shape
        draws = LayerDraws(batch.key, rows, first=-1)  # layers of the network count from 0
        numbers = draws.uniform((rows, 5), torch.float64)
        down, right, coin, *centre = numbers.unsqueeze(-1).unbind(1)
        ys, xs = (torch.arange(size, device=x.device) for size in (height, width))
        shown: Tensor | None = None
        if self.cutout:
            hole = [
                at - (c * size).long() + self.cutout // 2
                for at, c, size in zip((ys, xs), centre, (height, width), strict=True)
            ]
            tall, wide = ((at >= 0) & (at < self.cutout) for at in hole)
            shown = (tall.unsqueeze(2) & wide.unsqueeze(1)).logical_not()
        xs = xs.expand(rows, width)
        if self.flip:  # of what was cropped
            xs = torch.where(coin < 0.5, width - 1 - xs, xs)
        ys = ys.expand(rows, height)
        if self.crop:
            many = 2 * self.crop + 1
            ys = ys + (down * many).long() - self.crop
            xs = xs + (right * many).long() - self.crop
            inside = [(at >= 0) & (at < n) for at, n in ((ys, height), (xs, width))]
            within = inside[0].unsqueeze(2) & inside[1].unsqueeze(1)
            shown = within if shown is None else shown & within
            ys, xs = ys.clamp(0, height - 1), xs.clamp(0, width - 1)
        if self.crop or self.flip:
            source = (ys.unsqueeze(2) * width + xs.unsqueeze(1)).flatten(1)
            source = source.unsqueeze(1).expand(rows, channels, height * width)
            x = x.flatten(2).gather(2, source).view(x.shape)
        if shown is not None:
            x = x * shown.unsqueeze(1).to(torch.uint8).to(x.dtype)
        return batch._replace(x=x)
