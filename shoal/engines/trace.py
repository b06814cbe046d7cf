"""One local training step, traced once and replayed without autograd.

``compile_step`` records a pure step function on stand-in tensors, cleans the recording, decides
what can be stored in place, and returns a ``Replay`` that updates the carry tensors in place.
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, fx
from torch._ops import OpOverload
from torch.func import functionalize
from torch.fx.experimental.proxy_tensor import make_fx

from shoal.engines import trace_rules
from shoal.engines.inplace import make_plan
from shoal.engines.trace_blocks import use_blocks
from shoal.engines.trace_clean import clean, fold_constants
from shoal.engines.trace_emit import Bind, Run, write
from shoal.errors import ShoalError

Tensors = Sequence[Tensor]
Step = Callable[[list[Tensor], list[Tensor], list[Tensor]], list[Tensor]]

# Tracing changes global state of torch, so one thread at a time.
_TRACING = threading.Lock()
