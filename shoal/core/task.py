"""A model and its loss as pure functions of one flat vector."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping
from copy import copy, deepcopy
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor, nn
from torch.func import functional_call

from shoal.core.errors import UserError
from shoal.core.layers.drawing import LayerDraws
from shoal.core.layers.fitting import (
    check_layers,
    draws_by_layer,
    logits_and_features,
    materialise,
    moving_counter,
)
from shoal.core.layers.normalisation import over, purify, resting, set_modes
from shoal.core.layout import Layout
from shoal.core.rng import seeded
from shoal.core.types import Batch, Input, Model, Outputs, Target, split_inputs

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


def with_own_modules(task: Task) -> Task:
    """The same task for another thread, with copies of its modules and of those of tasks inside of
    it: a module's tensors are exchanged while it runs, so no two threads may run one."""
    if isinstance(task, ModuleTask):
        return task.copy()
    own = copy(task)
    for name, value in vars(task).items():
        if isinstance(value, nn.Module):
            object.__setattr__(own, name, _module_copy(value))
        elif callable(getattr(value, "row_losses", None)):
            object.__setattr__(own, name, with_own_modules(value))
    return own


def _module_copy(module: nn.Module) -> nn.Module:
    """Parameters and buffers are shared, since they are never written."""
    tensors = [*module.parameters(), *module.buffers()]
    return deepcopy(module, {id(t): t for t in tensors})


def cross_entropy_rows(logits: Tensor, labels: Tensor) -> Tensor:
    """Cross-entropy of each row; written with a gather so that it traces under vmap."""
    return -torch.log_softmax(logits, -1).gather(-1, labels.unsqueeze(-1)).squeeze(-1)


@dataclass(frozen=True)
class ModuleTask:
    """Any ``torch.nn.Module`` with a loss per row.

    A module that returns a pair is read as ``(logits, features)``; otherwise the features are the
    logits. Layers that draw random numbers (dropout) do so with the key of the batch, in training
    only. Running statistics of batch normalisation and every other floating buffer are part of the
    model; counters of batches are not kept. Buffers of whole numbers are constants: a module that
    moves one in training is refused. So are parameters with ``requires_grad=False`` and floating
    buffers of layers that the user put in evaluation mode (``frozen``): they are in no vector, and
    never sent.
    """

    build: Callable[[], nn.Module]
    rows: RowLoss = cross_entropy_rows
    classes: int | None = None
    dtype: torch.dtype = torch.float32
    lone_layer: str | None = None  # a normalisation that a batch of one row leaves without variance
    shape: tuple[int, ...] | None = None  # of one sample of the data, where that is known
    autocast: torch.dtype | None = None  # what layers compute in, where not in ``dtype``
    target: Target = "class"
    ignored: int | None = None  # the label that counts for nothing
    variances: tuple[float, ...] = ()  # of training rows, where numbers are learnt
    # mean and deviation of every answer: the network learns deviations from the mean
    unit: tuple[tuple[float, float], ...] = ()
    draws: bool = False  # random numbers in training, said by a layer or found by a look
    draws_by_row: bool = False  # the same for a row, however long a batch is
    sample: Tensor | None = field(default=None, repr=False, compare=False)  # rows, to size layers
    seed: int = field(default=0, compare=False)  # of what is frozen
    inputs: tuple[Input, ...] = ()  # where there are several, by the names that forward has
    # torch.func cannot see through it: a client at a time, by plain autograd
    by_autograd: bool = False
    module: nn.Module = field(init=False, repr=False, compare=False)
    plain: dict[str, Tensor] = field(init=False, repr=False, compare=False)
    # second names of tied tensors, and their first
    copies: dict[str, str] = field(init=False, repr=False, compare=False)
    unsaved: dict[str, Tensor] = field(init=False, repr=False, compare=False)  # not in ``plain``
    counters: tuple[str, ...] = field(init=False)  # buffers of whole numbers
    frozen: dict[str, Tensor] = field(init=False, repr=False, compare=False)
    frozen_digest: str = field(init=False)  # "" where nothing is
    rests: frozenset[str] = field(init=False)  # layers that stay in evaluation mode
    layout: Layout = field(init=False)
    stats_layout: Layout = field(init=False)
    stackable: bool = field(init=False)
    normalises: bool = field(init=False)  # over the batch

    def __post_init__(self) -> None:
        module = self.built(0)  # its weights are never used
        check_layers(module)
        # A copy: what is built may be somebody's own module, and this one is changed below.
        module = deepcopy(module).to(self.dtype)
        store: Callable[[str, Any], None] = lambda k, v: object.__setattr__(self, k, v)  # noqa: E731
        store("draws", self.draws or draws_by_layer(module))
        store("rests", resting(module))
        trained = {n: p for n, p in module.named_parameters() if p.requires_grad}
        for parameter in module.parameters():  # always run with others: only its form is read
            parameter.data = parameter.data.new_zeros(()).expand(parameter.shape)
        # What the plain module has, in its order; the module below loses its counters.
        store("plain", dict(module.state_dict()))
        store("copies", _copies(module, self.plain))
        _uncounted(module)
        _made_dense(module)
        store("normalises", purify(module, self.rests))
        store("module", module)
        store("layout", Layout.of(trained))
        held = _constants(module, self.rests)
        self._freeze(_tensors_of(self.built(self.seed), self.dtype) if held else {}, held)
        floating = {n: b for n, b in _floating_buffers(module).items() if n not in held}
        store("stats_layout", Layout.of(floating))
        store("unsaved", {k: v for k, v in floating.items() if k not in self.plain})
        whole = (k for k, b in module.named_buffers() if not b.is_floating_point())
        store("counters", tuple(k for k in whole if k not in held))
        wide = (nn.Conv1d, nn.Conv2d, nn.RNNBase)
        convolutions = any(isinstance(m, wide) for m in module.modules())
        alone = self.by_autograd or getattr(module, "one_by_one", False)
        store("stackable", not (convolutions or alone))

    def built(self, seed: int) -> nn.Module:
        """The plain module, with weights from a seed and sizes for every layer."""
        with seeded(seed):
            module = self.build()
            materialise(module, self.sample, self.inputs)
        return module

    def _freeze(self, tensors: Mapping[str, Tensor], names: Iterable[str]) -> None:
        with torch.inference_mode(False):
            held = {name: tensors[name].detach().clone() for name in names}
            held = {n: t.to(self.dtype) if t.is_floating_point() else t for n, t in held.items()}
        object.__setattr__(self, "frozen", held)
        object.__setattr__(self, "frozen_digest", digest_of(held))

    def holding(self, tensors: Mapping[str, Tensor]) -> ModuleTask:
        """The same task with other values of what is frozen (a state dict's)."""
        other = copy(self)
        other._freeze({**self.frozen, **tensors}, self.frozen)
        return other

    def copy(self) -> ModuleTask:
        """The same task with a module of its own."""
        own = copy(self)
        object.__setattr__(own, "module", _module_copy(self.module))
        return own

    def initial(self, seed: int) -> Model:
        return self.pack(_tensors_of(self.built(seed), self.dtype))

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
        found = self._in_own_type(theta, batch, stats, train)
        if not self.unit:
            return found
        return found._replace(logits=in_unit(found.logits, self.unit))

    def _in_own_type(self, theta: Tensor, batch: Batch, stats: Tensor, train: bool) -> Outputs:
        if self.autocast is None:
            return self._forward(theta, batch, stats, train)
        # no cache: it would keep one client's weights for another
        kind = theta.device.type
        with torch.autocast(kind, dtype=self.autocast, cache_enabled=False):
            found = self._forward(theta, batch, stats, train)
        logits, features, stats, _ = found
        return Outputs(logits.to(self.dtype), features.to(self.dtype), stats.to(self.dtype))

    def _forward(self, theta: Tensor, batch: Batch, stats: Tensor, train: bool) -> Outputs:
        given = self.layout.unflatten(theta)
        given |= {name: held.to(theta.device) for name, held in self.frozen.items()}
        set_modes(self.module, train, self.rests, not self.draws or batch.key is not None)
        if not (self.normalises or self.stats_layout.names or self.counters):
            return Outputs(*self._computed(given, batch, train), stats)
        given |= {k: v.clone() for k, v in self.stats_layout.unflatten(stats).items()}
        with torch.inference_mode(False):  # tensors of that mode do not count their versions
            counters = {n: self.module.get_buffer(n).clone() for n in self.counters}
            counters = {n: counter.to(theta.device) for n, counter in counters.items()}
        versions = {name: counter._version for name, counter in counters.items()}
        given |= counters
        with over(self.module, batch.weight):
            logits, features = self._computed(given, batch, train)
        for name, counter in counters.items():
            if given[name] is not counter or counter._version != versions[name]:
                raise moving_counter(name)
        # layers that move their statistics have put the new ones in the place of the old
        return Outputs(
            logits, features, self.stats_layout.flatten(given) if stats.numel() else stats
        )

    def _computed(
        self, given: dict[str, Tensor], batch: Batch, train: bool
    ) -> tuple[Tensor, Tensor]:
        several = split_inputs(batch.x, self.inputs) if self.inputs else {}
        one = () if self.inputs else (batch.x,)
        if not (train and self.draws):
            return logits_and_features(functional_call(self.module, given, one, several))
        key = torch.tensor(0, device=batch.x.device) if batch.key is None else batch.key
        with LayerDraws(key, len(batch.x)):
            return logits_and_features(functional_call(self.module, given, one, several))

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
        if self.unit:
            return self.rows(without_unit(outputs.logits, self.unit),
                             without_unit(batch.y, self.unit))  # fmt: skip
        return self.rows(outputs.logits, batch.y)

    def export(self, model: Model) -> dict[str, Tensor]:
        """Tensors by name that load into the plain module with ``load_state_dict``."""
        moving = {**self.layout.unflatten(model.theta), **self.stats_layout.unflatten(model.stats)}
        named = {**self.frozen, **moving}
        named |= {name: named[first] for name, first in self.copies.items() if first in named}
        return {
            name: named[name].detach().clone(memory_format=torch.contiguous_format)
            if name in named
            else value.clone()
            for name, value in self.plain.items()
        }


Unit = tuple[tuple[float, float], ...]


def in_unit(values: Tensor, unit: Unit) -> Tensor:
    """Deviations from the mean as answers are written: ``mean + deviation * value``."""
    if len(unit) == 1:
        return values * unit[0][1] + unit[0][0]
    return torch.stack([values[..., i] * w + m for i, (m, w) in enumerate(unit)], -1)


def without_unit(values: Tensor, unit: Unit) -> Tensor:
    """The deviations themselves."""
    if len(unit) == 1:
        return (values - unit[0][0]) / unit[0][1]
    return torch.stack([(values[..., i] - m) / w for i, (m, w) in enumerate(unit)], -1)


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
        if isinstance(layer, nn.SyncBatchNorm):
            raise UserError(
                f"layer {name!r} (SyncBatchNorm) shares its statistics with other processes, which "
                f"clients of a federation do not; write BatchNorm"
            )
        if getattr(layer, "num_batches_tracked", None) is not None:
            if getattr(layer, "momentum", None) is None:
                raise UserError(
                    f"layer {name!r} averages its statistics over all batches (momentum None), "
                    f"which cannot be trained here; give it a momentum such as 0.1."
                )
            layer.num_batches_tracked = None


def _made_dense(module: nn.Module) -> None:
    """A vector's gradient has no sparse parts; that of a table has the same numbers without."""
    for layer in module.modules():
        if isinstance(layer, nn.Embedding | nn.EmbeddingBag):
            layer.sparse = False


def _tensors_of(module: nn.Module, dtype: torch.dtype) -> dict[str, Tensor]:
    module = module.to(dtype)
    return {**dict(module.named_buffers()), **module.state_dict()}


def _constants(module: nn.Module, rests: frozenset[str]) -> list[str]:
    """Names of what no round changes: parameters that are not trained, floating buffers of layers
    that rest."""
    parameters = [n for n, p in module.named_parameters() if not p.requires_grad]
    floating = _floating_buffers(module)
    return [*parameters, *(n for n in floating if n.rpartition(".")[0] in rests)]


def digest_of(tensors: Mapping[str, Tensor]) -> str:
    """Of names, shapes and values; "" of none."""
    found = hashlib.sha256()
    for name, tensor in tensors.items():
        found.update(f"{name} {tuple(tensor.shape)} ".encode())
        found.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)
    return found.hexdigest() if tensors else ""


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


class Learnt(NamedTuple):
    """What is learnt, the label that counts for nothing (None: all count), and where numbers are
    learnt the variances of their columns, which errors are measured by."""

    target: Target
    ignored: int | None = None
    variances: tuple[float, ...] = ()

    @property
    def scored(self) -> bool:
        """Whether a row is right or wrong, or at least near or far."""
        return self.target != "number" or bool(self.variances)


def learnt_of(task: Task) -> Learnt:
    """A task that does not say what is learnt learns classes if it has some, else numbers."""
    plain: Target = "number" if task.classes is None else "class"
    target, variances = getattr(task, "target", plain), getattr(task, "variances", ())
    return Learnt(target, getattr(task, "ignored", None), variances)


def positions(labels: Tensor, ignored: int) -> Tensor:
    """How many positions of each row count (of a row with one class: 1 or 0)."""
    return (labels != ignored).reshape(labels.shape[0], -1).sum(-1)


def weighed(ignored: int | None, labels: Tensor, weight: Tensor) -> Tensor:
    """The weights of rows in a mean over what counts: theirs times how much of a row counts."""
    return weight if ignored is None else weight * positions(labels, ignored).to(weight.dtype)


def mean_loss(task: Task, outputs: Outputs, batch: Batch) -> Tensor:
    """The base loss of a batch: mean over its real rows, or over what counts in them."""
    losses = task.row_losses(outputs, batch)
    ignored: int | None = getattr(task, "ignored", None)
    if ignored is not None:
        weight = torch.ones_like(losses) if batch.weight is None else batch.weight
        batch = batch._replace(weight=weighed(ignored, batch.y, weight))
    return batch.mean(losses)
