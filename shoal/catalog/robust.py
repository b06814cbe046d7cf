"""Aggregation that withstands hostile uploads; plug-ins for any base method."""

from __future__ import annotations

from shoal.catalog.registry import entry
from shoal.domains import BelowHalf, Count, Limit, Whole
from shoal.method import Method
from shoal.part import Part
from shoal.parts.aggregators import CoordinateMedian, Krum, NormClip, TrimmedMean


def _robust(name: str, part: Part) -> Method:
    return Method(name, (part,), "uniform", base=False)


@entry
def median() -> Method:
    """Coordinate-wise median of the uploads (Yin et al. 2018)."""
    return _robust("median", CoordinateMedian())


@entry
def trimmed_mean(share: BelowHalf = 0.1) -> Method:
    """Coordinate-wise mean without the lowest and highest values (Yin et al. 2018)."""
    return _robust("trimmed_mean", TrimmedMean(share=share))


@entry
def krum(byzantine: Whole = 1) -> Method:
    """Krum: the one upload that lies closest to its neighbours (Blanchard et al. 2017)."""
    return _robust("krum", Krum(byzantine=byzantine))


@entry
def multi_krum(byzantine: Whole = 1, keep: Count | None = None) -> Method:
    """Multi-Krum: the mean of the uploads closest to their neighbours (Blanchard et al. 2017)."""
    return _robust("multi_krum", Krum(byzantine=byzantine, keep=keep))


@entry
def norm_clip(limit: Limit | None = None) -> Method:
    """Uploads shortened to a limit, by default the round's median (Sun et al. 2019)."""
    return _robust("norm_clip", NormClip(limit=limit))
