"""What clients send: compressed or private changes, to compose with any method.

Client weights stay those of that method, but under ``private``, which needs equal ones.

>>> from shoal import catalog
>>> catalog.fedavgm() | catalog.top_k(share=0.01)
Method fedavgm + top_k (client weights: by_samples): ServerMomentum() | TopK(share=0.01)
"""

from __future__ import annotations

from typing import Literal

from shoal.core.setting_types import Above0To1, AtLeast0, Limit, Within0And1
from shoal.methods.catalog.registry import entry
from shoal.methods.method import Method
from shoal.methods.parts.sent_changes import Private, Quantized, RandomK, TopK


@entry
def top_k(share: Above0To1 = 0.1, error_feedback: bool = True) -> Method:
    """Only the largest numbers of a change are sent (Aji and Heafield 2017)."""
    return Method("top_k", (TopK(share=share, error_feedback=error_feedback),), base=False)


@entry
def random_k(share: Above0To1 = 0.1, error_feedback: bool = True) -> Method:
    """Numbers of a change that are drawn anew in every round are sent (Konecny et al. 2016)."""
    return Method("random_k", (RandomK(share=share, error_feedback=error_feedback),), base=False)


@entry
def quantize(bits: Literal[4, 8, 16, 32] = 8, error_feedback: bool = True) -> Method:
    """Numbers of a change are sent with few bits (Alistarh et al. 2017)."""
    return Method("quantize", (Quantized(bits=bits, error_feedback=error_feedback),), base=False)


@entry
def private(clip: Limit = 1.0, noise: AtLeast0 = 1.0, delta: Within0And1 = 1e-5) -> Method:
    """Differential privacy of members: clipped changes, their mean under noise (McMahan 2018)."""
    return Method("private", (Private(clip=clip, noise=noise, delta=delta),), "equal", base=False)
