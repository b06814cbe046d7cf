"""A model and its loss as pure functions of one flat vector."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from copy import copy, deepcopy
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.func import functional_call

from shoal.core.errors import UserError
from shoal.core.layout import Layout
from shoal.core.pure_layers import check_layers, over, purify
from shoal.core.rng import seeded
from shoal.core.types import Batch, Model, Outputs

RowLoss = Callable[[Tensor, Tensor], Tensor]


class Task(Protocol):
    """What a method knows of the thing being learnt."""

    @property
    def layout(self) -> Layout: ...
    @property
    def stats_layout(self) -> Layout: ...
    @property
    def dtype(self) -> torch.dtype: ...
    @property
    def classes(self) -> int | None: ...
    @property
    def stackable(self) -> bool:
        """Whether clients are best trained stacked (false for convolutions)."""
        ...

    def initial(self, seed: int) -> Model: ...
    def forward(self, theta: Tensor, batch: Batch, stats: Tensor, train: bool) -> Outputs: ...
    def row_losses(self, outputs: Outputs, batch: Batch) -> Tensor: ...
    def export(self, model: Model) -> dict[str, Tensor]: ...


def cross_entropy_rows(logits: Tensor, labels: Tensor) -> Tensor:
    """Cross-entropy of each row; written with a gather so that it traces under vmap."""
    return -torch.log_softmax(logits, -1).gather(-1, labels.unsqueeze(-1)).squeeze(-1)


def weighted_rows(weights: Tensor) -> RowLoss:
    """Cross-entropy of each row times the weight of its class."""

    def rows(logits: Tensor, labels: Tensor) -> Tensor:
        own = torch.nn.functional.embedding(labels, weights.to(logits.dtype).unsqueeze(-1))
        return cross_entropy_rows(logits, labels) * own.squeeze(-1)

    return rows


@dataclass(frozen=True)
class ModuleTask:
    """Any ``torch.nn.Module`` with a loss a row.

    A module that returns a pair is read as ``(logits, features)``; otherwise the features are the
    logits. Layers that draw random numbers (dropout) and parameters that are not trained are
    refused. Running statistics of batch normalisation and every other floating buffer are part of
    the model; counters of batches are not kept. Buffers of whole numbers are constants: a module
    that moves one in training is refused.
    """

    build: Callable[[], nn.Module]
    rows: RowLoss = cross_entropy_rows
    classes: int | None = None
    dtype: torch.dtype = torch.float32
    lone_layer: str | None = None  # a normalisation that a batch of one row leaves without variance
    shape: tuple[int, ...] | None = None  # of one sample of the data, where that is known
    autocast: torch.dtype | None = None  # what layers compute in, where not in ``dtype``
    module: nn.Module = field(init=False, repr=False, compare=False)
    plain: dict[str, Tensor] = field(init=False, repr=False, compare=False)
    # second names of tied tensors, and their first
    copies: dict[str, str] = field(init=False, repr=False, compare=False)
    unsaved: dict[str, Tensor] = field(init=False, repr=False, compare=False)  # not in ``plain``
    counters: tuple[str, ...] = field(init=False)  # buffers of whole numbers
    layout: Layout = field(init=False)
    stats_layout: Layout = field(init=False)
    stackable: bool = field(init=False)
    normalises: bool = field(init=False)  # over the batch

    def __post_init__(self) -> None:
        with seeded(0):  # its weights are never used
            module = self.build()
        check_layers(module)
        # A copy: what is built may be somebody's own module, and this one is changed below.
        module = deepcopy(module).to(self.dtype).eval()
        for parameter in module.parameters():  # always run with others: only its form is read
            parameter.data = parameter.data.new_zeros(()).expand(parameter.shape)
        store: Callable[[str, Any], None] = lambda k, v: object.__setattr__(self, k, v)  # noqa: E731
        # What the plain module has, in its order; the module below loses its counters.
        store("plain", dict(module.state_dict()))
        store("copies", _copies(module, self.plain))
        _uncounted(module)
        store("normalises", purify(module))
        store("module", module)
        store("layout", Layout.of(dict(module.named_parameters())))
        floating = _floating_buffers(module)
        store("stats_layout", Layout.of(floating))
        store("unsaved", {k: v for k, v in floating.items() if k not in self.plain})
        store("counters", tuple(k for k, _ in module.named_buffers() if k not in floating))
        convolutions = any(isinstance(m, nn.Conv1d | nn.Conv2d | nn.LSTM) for m in module.modules())
        store("stackable", not (convolutions or getattr(module, "one_by_one", False)))

    def copy(self) -> ModuleTask:
        """The same task with a module of its own, for another thread: a module's tensors are
        exchanged while it runs. Parameters and buffers are shared, since they are never written."""
        tensors = [*self.module.parameters(), *self.module.buffers()]
        own = copy(self)
        object.__setattr__(own, "module", deepcopy(self.module, {id(t): t for t in tensors}))
        return own

    def initial(self, seed: int) -> Model:
        with seeded(seed):
            module = self.build().to(self.dtype)
        return self.pack({**dict(module.named_buffers()), **module.state_dict()})

    def resized(self, layout: Layout) -> ModuleTask:
        """The same network over tensors of other sizes, for one client at a time."""
        other = copy(self)
        object.__setattr__(other, "layout", layout)
        object.__setattr__(other, "stackable", False)
        return other

    def pack(self, tensors: Mapping[str, Tensor]) -> Model:
        """A model from tensors by parameter name (a state dict).

        A buffer that the module does not save has the value that it was built with.
        """
        tensors = {**self.unsaved, **tensors}
        return Model(
            self.layout.flatten(tensors).detach().to(self.dtype),
            self.stats_layout.flatten(tensors).detach().to(self.dtype),
        )

    def forward(self, theta: Tensor, batch: Batch, stats: Tensor, train: bool) -> Outputs:
        """Outputs have the task's own type, and so has the loss that is made of them, in training
        and in evaluation, whatever layers compute in."""
        if self.autocast is None:
            return self._forward(theta, batch, stats, train)
        # no cache: it would keep one client's weights for another
        kind = theta.device.type
        with torch.autocast(kind, dtype=self.autocast, cache_enabled=False):
            found = self._forward(theta, batch, stats, train)
        logits, features, stats, _ = found
        return Outputs(logits.to(self.dtype), features.to(self.dtype), stats.to(self.dtype))

    def _forward(self, theta: Tensor, batch: Batch, stats: Tensor, train: bool) -> Outputs:
        tensors = self.layout.unflatten(theta)
        if not (self.normalises or self.stats_layout.names or self.counters):
            return Outputs(*_pair(functional_call(self.module, tensors, (batch.x,))), stats)
        given = tensors | {k: v.clone() for k, v in self.stats_layout.unflatten(stats).items()}
        with torch.inference_mode(False):  # tensors of that mode do not count their versions
            counters = {n: self.module.get_buffer(n).clone() for n in self.counters}
            counters = {n: counter.to(theta.device) for n, counter in counters.items()}
        versions = {name: counter._version for name, counter in counters.items()}
        given |= counters
        with over(self.module, batch.weight, train):
            logits, features = _pair(functional_call(self.module, given, (batch.x,)))
        for name, counter in counters.items():
            if given[name] is not counter or counter._version != versions[name]:
                raise UserError(
                    f"buffer {name!r} of the network holds whole numbers and changes in training, "
                    f"which is not kept between rounds; make it floating, or leave it constant."
                )
        # layers that move their statistics have put the new ones in the place of the old
        return Outputs(
            logits, features, self.stats_layout.flatten(given) if stats.numel() else stats
        )

    @cached_property
    def class_rows(self) -> Tensor | None:
        """The class whose row of the head each number of the vector belongs to, else -1.

        The head is the last linear layer with one output per class; None if there is none.
        """
        heads = [
            name
            for name, layer in self.module.named_modules()
            if isinstance(layer, nn.Linear) and layer.out_features == self.classes
        ]
        if not heads or f"{heads[-1]}.weight".lstrip(".") not in self.layout.slices:
            return None
        owner = torch.full((self.layout.size,), -1)
        for name in ("weight", "bias"):
            where = self.layout.slices.get(f"{heads[-1]}.{name}".lstrip("."))
            if where is not None:
                classes = torch.arange(self.classes or 0)
                owner[where] = classes.repeat_interleave((where.stop - where.start) // len(classes))
        return owner

    def row_losses(self, outputs: Outputs, batch: Batch) -> Tensor:
        return self.rows(outputs.logits, batch.y)

    def export(self, model: Model) -> dict[str, Tensor]:
        """Tensors by name that load into the plain module with ``load_state_dict``."""
        named = {**self.layout.unflatten(model.theta), **self.stats_layout.unflatten(model.stats)}
        named |= {name: named[first] for name, first in self.copies.items() if first in named}
        return {
            name: named[name].detach().clone(memory_format=torch.contiguous_format)
            if name in named
            else value.clone()
            for name, value in self.plain.items()
        }


def _pair(result: Any) -> tuple[Tensor, Tensor]:
    """Logits and features of what a module returned."""
    return result if isinstance(result, tuple) else (result, result)


def _copies(module: nn.Module, saved: Mapping[str, Tensor]) -> dict[str, str]:
    """Names of tensors that the module has under another name before: tied weights."""
    parameters = module.named_parameters(remove_duplicate=False)
    first: dict[int, str] = {}
    every = [*parameters, *module.named_buffers(remove_duplicate=False)]
    named = {name: first.setdefault(id(tensor), name) for name, tensor in every}
    return {name: named[name] for name in saved if named.get(name, name) != name}


def _uncounted(module: nn.Module) -> None:
    """Drop ``num_batches_tracked``: it changes in place, which function transforms forbid.

    Only a layer without a momentum needs it, so such a layer is refused.
    """
    for name, layer in module.named_modules():
        if getattr(layer, "num_batches_tracked", None) is not None:
            if getattr(layer, "momentum", None) is None:
                raise UserError(
                    f"layer {name!r} averages its statistics over all batches (momentum None), "
                    f"which cannot be trained here; give it a momentum such as 0.1."
                )
            layer.num_batches_tracked = None


def _floating_buffers(module: nn.Module) -> dict[str, Tensor]:
    return {name: b for name, b in module.named_buffers() if b.is_floating_point()}


@dataclass(frozen=True)
class QuadraticTask:
    """``f_i(w) = 0.5 sum_j a_ij (w_j - b_ij)^2``; a row of data is ``(a_i, b_i)``.

    Float64 and exact gradients: every method that needs no features or classes can be checked on
    it by hand. ``sizes`` names the tensors inside ``w`` where a method looks at them; ``others``
    are the starts that seeds 1, 2, ... give, where a method begins with several models; ``head``
    lists the coordinates of each class's row. With ``buffers`` (names and sizes) a row of data is
    ``(a_i and s_i, b_i)``, and a step in training moves them: ``r <- (1 - momentum) r + momentum
    s_i``.
    """

    start: tuple[float, ...]
    sizes: tuple[tuple[str, int], ...] = ()
    dtype: torch.dtype = torch.float64
    classes: int | None = None
    stackable: bool = True
    others: tuple[tuple[float, ...], ...] = ()
    head: tuple[tuple[int, ...], ...] = ()
    buffers: tuple[tuple[str, int], ...] = ()
    buffers_start: tuple[float, ...] = ()
    momentum: float = 0.0

    @property
    def layout(self) -> Layout:
        named = self.sizes or (("w", len(self.start)),)
        return Layout(tuple(n for n, _ in named), tuple((s,) for _, s in named))

    @property
    def stats_layout(self) -> Layout:
        return Layout(tuple(n for n, _ in self.buffers), tuple((s,) for _, s in self.buffers))

    @property
    def class_rows(self) -> Tensor | None:
        """As of a network: the class whose row each coordinate belongs to, else -1."""
        if not self.head:
            return None
        owner = torch.full((len(self.start),), -1)
        for number, row in enumerate(self.head):
            owner[list(row)] = number
        return owner

    def initial(self, seed: int) -> Model:
        starts = (self.start, *self.others)
        theta = torch.tensor(starts[seed % len(starts)], dtype=self.dtype)
        return Model(theta, torch.tensor(self.buffers_start, dtype=self.dtype))

    def forward(self, theta: Tensor, batch: Batch, stats: Tensor, train: bool) -> Outputs:
        values = theta.expand(batch.x.shape[0], -1)
        if self.buffers and train:
            seen = batch.x[:, len(self.start) :].mean(0)
            stats = (1.0 - self.momentum) * stats + self.momentum * seen
        return Outputs(values, values, stats)

    def row_losses(self, outputs: Outputs, batch: Batch) -> Tensor:
        curvature = batch.x[..., : len(self.start)] if self.buffers else batch.x
        return 0.5 * (curvature * (outputs.logits - batch.y).square()).sum(-1)

    def export(self, model: Model) -> dict[str, Tensor]:
        return {k: v.clone() for k, v in self.layout.unflatten(model.theta).items()}


def mean_loss(task: Task, outputs: Outputs, batch: Batch) -> Tensor:
    """The base loss of a batch: mean over its real rows."""
    return batch.mean(task.row_losses(outputs, batch))
