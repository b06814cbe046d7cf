"""Accuracy over rounds, with what changed marked."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from shoal.errors import UserError
from shoal.reports.runs import Story, shift_name

# Okabe and Ito's palette: told apart by people with any colour vision.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")


def draw_curves(stories: Sequence[Story], out: Path, labels: Sequence[str] | None = None) -> None:
    """One line a run, dotted lines and words where the first run's world changed."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    names = list(labels or [s.method for s in stories])
    figure, axes = pyplot.subplots(figsize=(9, 4.8), layout="constrained")
    for i, (story, name) in enumerate(zip(stories, names, strict=True)):
        rounds, values = zip(*story.accuracy, strict=True) if story.accuracy else ((), ())
        percent = [100 * v for v in values]
        axes.plot(rounds, percent, label=name, color=COLOURS[i % len(COLOURS)], linewidth=1.6)
    for number, shift in stories[0].shifts:
        axes.axvline(number, color="0.55", linestyle=":", linewidth=1)
        axes.annotate(
            shift_name(shift),
            (number, 1.0),
            xycoords=("data", "axes fraction"),
            xytext=(0, 3),
            textcoords="offset points",
            rotation=25,
            ha="left",
            va="bottom",
            fontsize=8,
            color="0.35",
        )
    axes.set(xlabel="round", ylabel="accuracy, %", ylim=(0, 102))
    axes.grid(axis="y", color="0.9")
    axes.spines[["top", "right"]].set_visible(False)
    if len(stories) > 2:  # below the axes, where they hide no line
        axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.13), ncols=3, frameon=False)
    else:
        axes.legend(loc="lower right", frameon=False)
    try:
        figure.savefig(out, dpi=130)
    except (OSError, ValueError) as error:
        raise UserError(f"{out} cannot be written ({error})") from None
    finally:
        pyplot.close(figure)
