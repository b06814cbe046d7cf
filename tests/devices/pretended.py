"""A device that no machine has: its memory is the CPU's, its rules are CUDA's.

Torch lets a program bring a device of its own (``PrivateUse1``). This one is called ``pretended``.
Its tensors are no subclass of anything: they are torch's own, with real storages, views, inference
mode, autograd, ``vmap`` and TorchScript, and every operator that reaches the device is played by
the CPU's kernel on the same memory, so a run on it can be compared bit by bit with one on the CPU.
What CUDA refuses it refuses: tensors of two devices in one operator (but for numbers without an
axis, and for an index of a device tensor that lies on the CPU), ``.numpy()`` of a device tensor,
and draws on the device from a generator of the CPU. Draws from its global generator it refuses too,
since nothing in a run may make them.

What it cannot show: kernels, memory, streams, the rounding of another machine.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from threading import Lock
from typing import Any

import torch
from torch import Tag, Tensor
from torch._ops import OpOverload
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils import _pytree as pytree
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

NAME = "pretended"
KEY = "PrivateUse1"
aten = torch.ops.aten

WAITS: Counter[str] = Counter()  # times that the host asked for numbers of the device, by operator

# Look at sizes, strides and storages only, whatever device these are on.
_VIEWS = (
    "view", "as_strided", "_reshape_alias", "unfold", "view_as_real", "view_as_complex", "set_",
)  # fmt: skip
# The CPU may index a device tensor: CUDA fetches the index.
_INDEXING = ("index", "index_put", "index_put_", "_index_put_impl_", "_unsafe_index")
# Take a number from the CPU beside device tensors, though they are not tagged entry by entry.
_TAKE_NUMBERS = ("where", "fill_", "masked_fill", "masked_fill_", "clamp", "clamp_", "index_fill_")


def install() -> str:
    """Make the device known to torch, once per process; its name."""
    if not _LIBRARIES:
        _setup_privateuseone_for_python_backend(NAME)
        _LIBRARIES.extend(_kernels())
        # Torch's own copies a storage, for which a device brings an allocator written in C++.
        own = Tensor.__deepcopy__
        Tensor.__deepcopy__ = lambda tensor, memo: (  # type: ignore[method-assign]
            memo.setdefault(id(tensor), tensor.clone()) if is_far(tensor) else own(tensor, memo)
        )
    return NAME


_LIBRARIES: list[torch.library.Library] = []
_ON_CPU = torch._C.DispatchKeySet(torch._C.DispatchKey.CPU)


def _kernels() -> list[torch.library.Library]:
    """Every operator that the CPU has a kernel for, and what torch asks of a device beside it."""
    own = torch.library.Library("aten", "IMPL")
    special: dict[str, Callable[..., Any]] = {
        "_copy_from": _copied,
        "convolution_overrideable": _convolution,
        "convolution_backward_overrideable": _convolution_backward,
    }
    for name, kernel in special.items():
        own.impl(name, kernel, KEY)
    for full in torch._C._dispatch_get_registrations_for_dispatch_key("CPU"):
        space, _, name = full.partition("::")
        packet, _, overload = name.partition(".")
        if space != "aten" or packet in special or "dtype" in packet:
            continue
        op = getattr(getattr(aten, packet, None), overload or "default", None)
        if op is not None:
            own.impl(name, _redirected(op) if packet in _VIEWS else _played(op), KEY)
    rest = torch.library.Library("_", "IMPL")
    rest.fallback(lambda op, *args, **kwargs: _play(op, args, kwargs), KEY)
    return [own, rest]


def _redirected(op: OpOverload) -> Callable[..., Any]:
    return lambda *args, **kwargs: op.redispatch(_ON_CPU, *args, **kwargs)


def _played(op: OpOverload) -> Callable[..., Any]:
    return lambda *args, **kwargs: _play(op, args, kwargs)


def _convolution(*args: Any) -> Any:
    return _play(aten.convolution.default, args, {})


def _convolution_backward(grad: Tensor, x: Tensor, weight: Tensor, *more: Any) -> Any:
    """As for other devices, but that the sizes of a bias are asked for too."""
    *settings, mask = more
    return _play(
        aten.convolution_backward.default,
        (grad, x, weight, [weight.shape[0]], *settings, mask),
        {},
    )


# ---- memory --------------------------------------------------------------------------------------
class _Memory:
    """Which memory of the CPU a storage of the device is; kept as long as the storage lives."""

    def __init__(self) -> None:
        self._kept: dict[int, tuple[StorageWeakRef, torch.UntypedStorage]] = {}
        self._sweep_at = 1024
        self._lock = Lock()

    def of(self, tensor: Tensor) -> torch.UntypedStorage:
        return self._kept[tensor.untyped_storage()._cdata][1]

    def lend(self, storage: torch.UntypedStorage) -> torch.UntypedStorage:
        """The same memory as a storage of the device."""
        made: torch.UntypedStorage = torch._C._construct_storage_from_data_pointer(
            storage.data_ptr(), torch.device(NAME, 0), storage.nbytes()
        )
        # A weak reference keeps the address from being given to another storage.
        with self._lock:
            self._kept[made._cdata] = (StorageWeakRef(made), storage)
            if len(self._kept) > self._sweep_at:
                gone = [key for key, (reference, _) in self._kept.items() if reference.expired()]
                for key in gone:
                    del self._kept[key]
                self._sweep_at = 2 * len(self._kept) + 1024
        return made


_MEMORY = _Memory()
_set = aten.set_.source_Storage_storage_offset


def is_far(value: Any) -> bool:
    return isinstance(value, Tensor) and value.device.type == NAME


def _near(tensor: Tensor) -> Tensor:
    """The CPU's view of a device tensor."""
    place = (tensor.storage_offset(), tensor.shape, tensor.stride())
    return torch.empty(0, dtype=tensor.dtype).set_(_MEMORY.of(tensor), *place)


def _far(tensor: Tensor) -> Tensor:
    """A device tensor on the memory of a CPU tensor."""
    return _attach(torch._C._acc.create_empty_tensor((0,), tensor.dtype), tensor)


def _attach(far: Tensor, near: Tensor) -> Tensor:
    storage = _MEMORY.lend(near.untyped_storage())
    _set.redispatch(_ON_CPU, far, storage, near.storage_offset(), near.shape, near.stride())
    return far


# ---- playing an operator -------------------------------------------------------------------------
def _play(op: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The operator by the CPU's kernel, after what CUDA would look at."""
    _check(op, args, kwargs)
    with torch._C._AutoDispatchBelowAutograd():
        twins: dict[int, tuple[Tensor, Tensor]] = {}  # by the device tensor: both
        flat, form = pytree.tree_flatten((args, kwargs))
        near = [_given(value, twins) for value in flat]
        own, named = pytree.tree_unflatten(near, form)
        found = (op.overloadpacket if _has_numbers(op, own) else op)(*own, **named)
        back = {id(twin): far for far, twin in twins.values()}
        here = not twins and "device" not in kwargs

        def out(value: Any) -> Any:
            if not isinstance(value, Tensor) or here:
                return value
            return back[id(value)] if id(value) in back else _far(value)

        if op._schema.is_mutable:
            for far, twin in twins.values():
                if twin.untyped_storage().data_ptr() != far.untyped_storage().data_ptr() or (
                    twin.shape != far.shape
                ):
                    _attach(far, twin)  # an ``out=`` that was too small
        return pytree.tree_map(out, found)


def _has_numbers(op: OpOverload, args: Any) -> bool:
    """Whether a number stands where a tensor should: torch hands a tensor that it has made of a
    number to Python as that number."""
    kinds = (str(argument.type) for argument in op._schema.arguments)
    return any(
        kind == "Tensor" and isinstance(value, int | float)
        for kind, value in zip(kinds, args, strict=False)
    )


def _given(value: Any, twins: dict[int, tuple[Tensor, Tensor]]) -> Any:
    if is_far(value):
        if id(value) not in twins:
            twins[id(value)] = (value, _near(value))
        return twins[id(value)][1]
    if isinstance(value, torch.device):
        return torch.device("cpu")
    return value


def _copied(source: Tensor, target: Tensor, non_blocking: bool = False) -> Tensor:
    """From one device to another, or on this one."""
    if is_far(source) and not is_far(target):
        WAITS["copy to the CPU"] += 1
    with torch._C._AutoDispatchBelowAutograd():
        (_near(target) if is_far(target) else target).copy_(
            _near(source) if is_far(source) else source
        )
    return target


# ---- what CUDA refuses ---------------------------------------------------------------------------
def _check(op: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    if Tag.nondeterministic_seeded in op.tags:
        raise RuntimeError(f"{op} draws on {NAME}, which has no generator but a global one")
    if op is aten._local_scalar_dense.default or Tag.data_dependent_output in op.tags:
        WAITS[str(op)] += 1
    tensors = [t for t in pytree.tree_leaves((args, kwargs)) if isinstance(t, Tensor)]
    here = [t for t in tensors if not is_far(t)]
    if not here:
        return
    name = op._schema.name.partition("::")[2]
    others = [t for t in pytree.tree_leaves(args[2:]) if isinstance(t, Tensor)]  # not indices
    if name in _INDEXING and is_far(args[0]) and all(is_far(t) or not t.dim() for t in others):
        return
    takes_numbers = Tag.pointwise in op.tags or name in _TAKE_NUMBERS
    changed = any(t is c for t in here for c in _changed(op, args, kwargs))
    if changed or not takes_numbers or any(t.dim() for t in here):
        shapes = ", ".join(f"{t.device} {list(t.shape)}" for t in tensors)
        raise RuntimeError(f"Expected all tensors to be on the same device, but {op} got {shapes}")


def _changed(op: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Iterator[Any]:
    """Arguments that the operator writes to."""
    for place, argument in enumerate(op._schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            given = args[place] if place < len(args) else kwargs.get(argument.name)
            yield from pytree.tree_leaves(given)
