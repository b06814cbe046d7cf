"""A function of tensors as a graph of the operators that it calls.

The function runs once for real, on copies of the tensors at hand, under two modes of torch: one is
shown every operator below ``vmap``, ``grad`` and autograd, and writes it down; the other refuses
what would look at a tensor's numbers, since those of one run mean nothing in a later one.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, MutableMapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tag, Tensor, fx
from torch._ops import OpOverload
from torch.fx.node import map_aggregate
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.weak import WeakTensorKeyDictionary

from shoal.engines.compiler.graph import Recording, aten, extent, without_memory

_VALUE_TAGS = {Tag.data_dependent_output, Tag.dynamic_output_shape}


def recorded(function: Callable[..., list[Tensor]], tensors: Sequence[Tensor]) -> Recording:
    """What ``function`` does to tensors like these; every node has its shape in ``meta["val"]``.

    Raises ``ValueError`` when the function looks at values, and whatever the function raises.
    """
    recorder = Recorder()
    given = [_copy(t) for t in tensors]
    for tensor in given:
        recorder.add_input(tensor)
    with torch.random.fork_rng(devices=[]), Unread(), recorder:
        result = function(*given)
    return recorder.finish(result)


class Recorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Writes down every operator, and does it."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        # Otherwise torch wraps the method below so that its compiler skips it, and imports that.
        return False

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._recording = Recording()
        self._graph = self._recording.graph
        self._names: MutableMapping[Tensor, str] = WeakTensorKeyDictionary()
        self._nodes: MutableMapping[Tensor, fx.Node] = WeakTensorKeyDictionary()
        self._known: set[fx.Node] = set()  # those whose values are the same in every run

    def add_input(self, tensor: Tensor) -> None:
        node = self._graph.placeholder(f"arg{len(self._graph.nodes)}_1")
        self._track(tensor, node)

    def finish(self, result: Sequence[Tensor]) -> Recording:
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
        if func._schema.is_mutable:
            self._before_change(func, args, kwargs, known)
        node = self._call(func, args, kwargs)
        result = func(*args, **kwargs)
        self._track(result, node)
        if known and Tag.nondeterministic_seeded not in func.tags:
            self._known.update([node, *node.users])
        return result

    def _call(self, func: OpOverload, args: Any, kwargs: Any) -> fx.Node:
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

    def _track(self, result: Any, node: fx.Node) -> None:
        """Remember whose result a tensor is; of several results, each is taken out."""
        if isinstance(result, Tensor):
            self._nodes[result] = node
            node.meta["val"] = without_memory(result)
        elif isinstance(result, list | tuple):
            node.meta["val"] = [without_memory(r) if isinstance(r, Tensor) else r for r in result]
            for k, one in enumerate(result):
                self._track(one, self._graph.call_function(operator.getitem, (node, k)))

    def _before_change(self, func: OpOverload, args: Any, kwargs: Any, known: bool) -> None:
        """An operation in place may change the copies and what was made of them, nothing else."""
        for k, argument in enumerate(func._schema.arguments):
            if argument.alias_info is None or not argument.alias_info.is_write:
                continue
            changed = args[k] if k < len(args) else kwargs.get(argument.name)
            if any(t not in self._nodes for t in _tensors(changed)):
                raise ValueError("it changes its inputs in place")
        if not known:  # some view of a known tensor may be known no more
            self._known.clear()


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


def _copy(tensor: Tensor) -> Tensor:
    """A tensor with these values and strides. Tensors made in inference mode cannot be
    differentiated; copies of them can."""
    memory = tensor.detach().as_strided((extent(tensor),), (1,)).clone()
    return memory.as_strided(tensor.shape, tensor.stride())


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
    return (labels.unsqueeze(-1) == torch.arange(num_classes)).long()
