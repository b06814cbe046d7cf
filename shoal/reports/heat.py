"""How differently members' labels are spread: figures, and the heat map."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt

from shoal.data.heterogeneity import heterogeneity, label_histograms
from shoal.errors import UserError
from shoal.worlds.base import World

MOST = 200  # members looked at, evenly spaced


def held_labels(
    world: World, round: int = 0
) -> tuple[npt.NDArray[np.int64], list[npt.NDArray[np.int64]]]:
    """The labels of members present, one after another, and each member's places in them."""
    members = world.at(round).members
    step = max(1, len(members) // MOST)
    labels = [world.train(int(c), round).labels.cpu().numpy() for c in members[::step]]
    ends = np.cumsum([len(own) for own in labels])
    parts = [np.arange(end - len(own), end) for own, end in zip(labels, ends, strict=True)]
    return np.concatenate(labels).astype(np.int64), parts


def heterogeneity_line(world: World) -> str:
    """Label entropy, distance to the whole federation's labels, and spread of sizes, in words."""
    labels, parts = held_labels(world)
    found = heterogeneity(labels, parts).summary()
    shown = ", ".join(f"{name.replace('_', ' ')} {value:.3g}" for name, value in found.items())
    return f"labels of {len(parts)} members in round 0: {shown}"


def draw_heat(world: World, out: Path) -> None:
    """Rows are members, columns classes, colour the share of the member's rows."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    labels, parts = held_labels(world)
    table = label_histograms(labels, parts).astype(float)
    table /= np.maximum(1, table.sum(1, keepdims=True))
    figure, axes = pyplot.subplots(figsize=(6, 6), layout="constrained")
    image = axes.imshow(table, aspect="auto", cmap="cividis", vmin=0, vmax=1)
    axes.set(xlabel="class", ylabel="member", title="share of a member's rows in each class")
    figure.colorbar(image)
    try:
        figure.savefig(out, dpi=120)
    except (OSError, ValueError) as error:
        raise UserError(f"{out} cannot be written ({error})") from None
    finally:
        pyplot.close(figure)
