"""A function of tensors as a graph of the operators that it calls.

The function runs once for real, on the memory of the tensors at hand, under two modes of torch: one
is shown every operator below ``vmap``, ``grad`` and autograd, and writes it down; the other refuses
what would look at a tensor's numbers, since those of one run mean nothing in a later one.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterator, MutableMapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tag, Tensor
from torch._ops import OpOverload
from torch.func import functionalize
from torch.fx import Node
from torch.fx.node import map_aggregate
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.weak import WeakTensorKeyDictionary

from shoal.core.rng import draws_globally
from shoal.engines.compiler.graph import Graph, aten, insert, value, without_memory

_VALUE_TAGS = {Tag.data_dependent_output, Tag.dynamic_output_shape}


Step = Callable[[list[Tensor], list[Tensor], list[Tensor]], list[Tensor]]


class Untraceable(Exception):  # noqa: N818 (a state of affairs, not a mistake)
    """A function cannot be captured; the message says why in one sentence."""


class _Writes(ValueError):  # noqa: N818
    """It changes its inputs in place; as a pure function it may not."""

    def __init__(self) -> None:
        super().__init__("it changes its inputs in place")


def capture_step(
    step: Step,
    carry: Sequence[Tensor],
    fixed: Sequence[Tensor],
    batch: Sequence[Tensor],
    rate: int | None,
) -> Graph:
    """A step as a graph with its inputs by role.

    ``rate`` is the number in ``fixed`` of the 0-d rate when it is one number for everybody: the
    graph then makes that tensor from the number that comes with every call.
    """
    groups = [list(carry), list(fixed), list(batch)]

    def flat(*args: Tensor) -> list[Tensor]:
        given = iter(args)
        return list(step(*([next(given) for _ in group] for group in groups)))

    graph = _pure(flat, [t for group in groups for t in group], "the step")
    before = [(t.shape, t.dtype) for t in carry]
    after = [(t.shape, t.dtype) for t in map(value, graph.returned) if isinstance(t, Tensor)]
    if before != after:
        raise Untraceable("the step cannot be traced: its result is not shaped like the carry")
    inputs = iter(graph.fixed)
    graph.carry, graph.fixed, graph.batch = ([next(inputs) for _ in group] for group in groups)
    graph.rate = graph.add_input("rate", 0.5)
    if rate is not None:
        tensor = graph.fixed[rate]
        with graph.fx.inserting_after(graph.rate):
            kind = {"dtype": fixed[rate].dtype, "device": fixed[rate].device}
            made = insert(graph.fx, aten.scalar_tensor.default, graph.rate, **kind)
        tensor.replace_all_uses_with(made)
    return graph


def capture_function(function: Callable[..., list[Tensor]], tensors: Sequence[Tensor]) -> Graph:
    """A function of flat tensors as a graph, all of whose inputs are fixed."""
    return _pure(function, tensors, "a client's start or end")


def _pure(function: Callable[..., list[Tensor]], tensors: Sequence[Tensor], what: str) -> Graph:
    """A graph that changes nothing in place."""
    try:
        try:
            graph = recorded(function, tensors)
            pure = not any(_overwrites(n) for n in graph.fx.nodes)
        except _Writes:
            pure = False
        if not pure:
            graph = recorded(functionalize(function), tensors)
            if any(_overwrites(n) for n in graph.fx.nodes):
                raise _Writes
    except Exception as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise Untraceable(f"{what} cannot be traced: {reason}") from error
    return graph


def _overwrites(node: Node) -> bool:
    return isinstance(node.target, OpOverload) and _changes(node.target, node.args)


def _changes(func: OpOverload, args: Any) -> bool:
    """Whether a call writes over a tensor; batch normalisation does so with running statistics in
    training, though its schema denies it."""
    if func is aten.native_batch_norm.default:
        return args[3] is not None and args[5] is True
    return bool(func._schema.is_mutable)


def recorded(function: Callable[..., list[Tensor]], tensors: Sequence[Tensor]) -> Graph:
    """What ``function`` does to tensors like these.

    Raises ``ValueError`` when the function looks at values, writes to what it was given or draws
    from torch's global generator, and whatever the function raises.
    """
    given = [_alias(t) for t in tensors]
    recorder = CaptureMode(given)
    with Unread(), recorder:
        result = function(*given)
    return recorder.finish(result)


class CaptureMode(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Writes down every operator, and does it."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        # Otherwise torch wraps the method below so that its compiler skips it, and imports that.
        return False

    def __init__(self, given: Sequence[Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._recording = Graph()
        if given:
            self._recording.device = given[0].device
        self._graph = self._recording.fx
        self._lent = {_memory(tensor) for tensor in given}
        self._names: MutableMapping[Tensor, str] = WeakTensorKeyDictionary()
        self._nodes: MutableMapping[Tensor, Node] = WeakTensorKeyDictionary()
        self._known: set[Node] = set()  # those whose values are the same in every run
        for tensor in given:
            node = self._graph.placeholder(f"arg{len(self._graph.nodes)}_1")
            self._recording.fixed.append(node)
            self._track(tensor, node)

    def finish(self, result: Sequence[Tensor]) -> Graph:
        self._graph.output([self._node(t) for t in result])
        return self._recording

    def __torch_dispatch__(
        self, func: OpOverload, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        # A tensor literal: what is made of it must not write into the constant that is kept.
        func = aten.lift_fresh_copy.default if func is aten.lift_fresh.default else func
        read = list(_tensors((args, kwargs)))
        known = all(t not in self._nodes or self._nodes[t] in self._known for t in read)
        if _looks(func, args):
            if not known:
                raise ValueError(f"it looks at the values of a tensor ({func})")
            return func(*args, **kwargs)
        if draws_globally(func, args, kwargs):
            raise ValueError(f"it draws random numbers ({func})")
        if _changes(func, args):
            self._before_change(func, args, kwargs, known)
        node = self._call(func, args, kwargs)
        result = _unwritten(func, args, kwargs)
        if result is None:
            result = func(*args, **kwargs)
        self._track(result, node)
        if known and Tag.nondeterministic_seeded not in func.tags:
            self._known.update([node, *node.users])
        return result

    def _call(self, func: OpOverload, args: Any, kwargs: Any) -> Node:
        name = self._graph._target_to_str(func.overloadpacket.__name__)
        args, kwargs = map_aggregate((args, kwargs), self._node)
        return self._graph.create_node("call_function", func, args, kwargs, name=name)

    def _node(self, value: Any) -> Any:
        """The node of a tensor, where one from outside is a constant; other values as they are."""
        if not isinstance(value, Tensor):
            return value
        if value in self._nodes:
            return self._nodes[value]
        if value not in self._names:
            self._names[value] = f"_tensor_constant{len(self._names)}"
            self._recording.constants[self._names[value]] = value
        return self._graph.create_node("get_attr", self._names[value])

    def _track(self, result: Any, node: Node) -> None:
        """Remember whose result a tensor is; of several results, each is taken out."""
        if isinstance(result, Tensor):
            self._nodes[result] = node
            node.meta["val"] = without_memory(result)
        elif isinstance(result, list | tuple):
            node.meta["val"] = [without_memory(r) if isinstance(r, Tensor) else r for r in result]
            for k, one in enumerate(result):
                self._track(one, self._graph.call_function(operator.getitem, (node, k)))

    def _before_change(self, func: OpOverload, args: Any, kwargs: Any, known: bool) -> None:
        """An operation in place may change what was made here, nothing else."""
        changed = list(args[3:5]) if func is aten.native_batch_norm.default else []
        for k, argument in enumerate(func._schema.arguments):
            if argument.alias_info is not None and argument.alias_info.is_write:
                changed.append(args[k] if k < len(args) else kwargs.get(argument.name))
        for tensor in _tensors(changed):
            if tensor not in self._nodes or _memory(tensor) in self._lent:
                raise _Writes
        if not known:  # some view of a known tensor may be known no more
            self._known.clear()


_LARGE = 1 << 20  # numbers of a result from which on it is worth not to be written
_DENSE = frozenset(("mm", "bmm", "cat"))  # always lay their result out plainly
_LIKE_FIRST = frozenset(("mul", "add", "sub", "div", "neg"))


def _unwritten(func: OpOverload, args: Any, kwargs: Any) -> Tensor | None:
    """Memory that nobody writes to (and that therefore costs nothing) as the result of a call whose
    result is large and lies in a known way: what numbers it has is nobody's business here."""
    name = func._schema.name.removeprefix("aten::")
    if name not in _DENSE | _LIKE_FIRST or "out" in kwargs or func._schema.is_mutable:
        return None
    tensors = list(_tensors(args))
    first = max(tensors, key=Tensor.dim)
    sizes = list(first.shape)
    if name in ("mm", "bmm"):
        sizes[-1] = tensors[1].shape[-1]
    elif not all(t.is_contiguous() and t.dtype == first.dtype for t in tensors):
        return None
    elif name == "cat":
        if any(t.dim() != len(sizes) for t in tensors):
            return None
        dim = (args[1] if len(args) > 1 else kwargs.get("dim", 0)) % len(sizes)
        sizes[dim] = sum(t.shape[dim] for t in tensors)
    elif any(t.dim() > 0 and t.shape != first.shape for t in tensors):
        return None
    if not first.is_floating_point() or math.prod(sizes) < _LARGE:
        return None
    return torch.empty(sizes, dtype=first.dtype, device=first.device)


def _looks(func: OpOverload, args: Any) -> bool:
    """Whether a result that is no tensor, or a tensor's shape, depends on values."""
    if func is aten.index.Tensor:  # with a mask it chooses, with numbers it looks up
        return any(t.dtype in (torch.bool, torch.uint8) for t in _tensors(args[1]))
    return not _VALUE_TAGS.isdisjoint(func.tags) or func is aten.is_nonzero.default


def _tensors(arguments: Any) -> Iterator[Tensor]:
    """All tensors inside of arguments."""
    if isinstance(arguments, Tensor):
        yield arguments
    elif isinstance(arguments, list | tuple):
        for argument in arguments:
            yield from _tensors(argument)
    elif isinstance(arguments, dict):
        yield from _tensors(list(arguments.values()))


def _alias(tensor: Tensor) -> Tensor:
    """Another tensor on the same memory. Tensors made in inference mode cannot be differentiated;
    these can, and cost nothing."""
    with torch.inference_mode(False):
        other = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
        place = (tensor.storage_offset(), tensor.shape, tensor.stride())
        return other.set_(tensor.untyped_storage(), *place)


def _memory(tensor: Tensor) -> int:
    """What tells the memory of one tensor from that of another."""
    place: int = tensor.untyped_storage()._cdata
    return place


# Methods that hand out numbers without calling an operator.
_READS = (Tensor.tolist, Tensor.numpy, Tensor.__array__, Tensor.__dlpack__)


class Unread(TorchFunctionMode):
    """Refuses methods that hand out numbers without calling an operator."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        if func in _READS:
            raise ValueError(f"it looks at the values of a tensor ({func.__name__})")
        if func is Tensor.__repr__:  # somebody prints what they work with
            return f"tensor(..., size={tuple(args[0].shape)}, dtype={args[0].dtype})"
        if func is F.one_hot and not torch._C._functorch.is_batchedtensor(args[0]):
            return _one_hot(*args, **(kwargs or {}))
        return func(*args, **(kwargs or {}))


def _one_hot(labels: Tensor, num_classes: int = -1) -> Tensor:
    """Torch's own looks whether all labels are in range."""
    if num_classes < 0:
        return F.one_hot(labels)
    return (labels.unsqueeze(-1) == torch.arange(num_classes, device=labels.device)).long()
