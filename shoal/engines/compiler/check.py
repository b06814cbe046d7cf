"""Whether a rewritten step does what the captured one does, tried on several states.

The tensors at hand alone prove little: momentum, variates and duals are zero at the start, and a
pass that drops them agrees there. So there are two states beside with everything moved, and one
whose carry is ones.
"""

from __future__ import annotations

import contextlib
import ctypes
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Generator, Tensor

from shoal.engines.client_round import replaying
from shoal.engines.compiler import graph
from shoal.engines.compiler.capture import Untraceable
from shoal.engines.compiler.emit_torchscript import FactoredScript
from shoal.engines.compiler.graph import FactoredInputs, Refused, extent

# Relative, of two ways to do a step, by the norm of each tensor.
TOLERANCE = {torch.float64: 1e-10, torch.float32: 1e-4}
_COARSE = 2e-2  # of half precision
# How far rounding may move a step's result, relative, for a state to say anything at that
# tolerance.
_STEADY = 0.1
_MUCH = 1 << 24  # bytes of a carry
_BLOCK = 1 << 18  # numbers that are compared, or moved, at once


GIVEN = "given state"


class State(NamedTuple):
    """What a step reads, and what to call it."""

    name: str
    carry: list[Tensor]
    fixed: list[Tensor]
    batch: list[Tensor]
    rate: float


Way = Callable[[State], None]  # to do a step; the state's carry is updated in place
# States are made anew for everybody who wants one: a model may be large, and few fit in memory.
MakeState = Callable[[], State]


def states(given: State, read: Sequence[int]) -> list[MakeState]:
    """The states that steps are compared on; ``read`` are the fixed inputs that a step reads."""
    return [
        lambda: given._replace(carry=[t.clone() for t in given.carry]),
        lambda: _perturbed(given, read, 1, 1.0),
        lambda: _perturbed(given, read, 2, 0.3),
        lambda: given._replace(
            name="carry of ones",
            carry=[torch.ones_like(t) if t.is_floating_point() else t.clone() for t in given.carry],
        ),
    ]


def _perturbed(given: State, read: Sequence[int], number: int, rate: float) -> State:
    source = Generator().manual_seed(number)
    return State(
        f"perturbed state {number}",
        [_raised(t.clone(), source) for t in given.carry],
        [_raised(_own(t), source) if k in read else t for k, t in enumerate(given.fixed)],
        [_shrunk(t, source) for t in given.batch],
        rate,
    )


def _own(tensor: Tensor) -> Tensor:
    """A tensor of its own memory, laid out as this one: what is repeated is repeated."""
    memory = tensor.as_strided((extent(tensor),), (1,)).clone()
    return memory.as_strided(tensor.shape, tensor.stride())


def _raised(tensor: Tensor, source: Generator) -> Tensor:
    """The tensor with numbers a little larger: what is positive stays so, what is zero does not
    stay zero."""
    if not tensor.is_floating_point() or not tensor.numel():
        return tensor
    memory = tensor.as_strided((extent(tensor),), (1,))
    noise = torch.empty(min(len(memory), _BLOCK), dtype=tensor.dtype).uniform_(generator=source)
    width = float(memory.norm(1)) / len(memory)
    noise = noise.mul_(0.1 * (width if 0 < width < math.inf else 1.0)).to(tensor.device)
    for part in _blocks(memory):
        part.add_(noise[: len(part)])
    return tensor


def _blocks(vector: Tensor) -> tuple[Tensor, ...]:
    return torch.split(vector, _BLOCK)


def _shrunk(tensor: Tensor, source: Generator) -> Tensor:
    """Numbers a little nearer to zero: weights stay weights, and numbers of words stay in range."""
    if not tensor.is_floating_point():
        return tensor
    noise = torch.empty(tensor.shape, dtype=tensor.dtype).uniform_(0.9, 1.0, generator=source)
    return tensor * noise.to(tensor.device)


def agree(
    reference: Way, candidates: Mapping[str, Way], tried: Sequence[MakeState]
) -> dict[str, str]:
    """Which candidates do otherwise than the reference, and in what state.

    All of them are tried on the first state, and the last one on every state: it is made of the
    same statements as the others.
    """
    wrong: dict[str, str] = {}
    *_, last = candidates
    with replaying():
        for number, make in enumerate(tried):
            try:
                expected = _result(reference, make())
            except (RuntimeError, IndexError) as error:
                if number:
                    continue  # not a state that this step is ever in
                said = str(error).strip().splitlines()[0]
                raise Untraceable(f"the step cannot be replayed: {said}") from error
            _give_back(expected)
            for name, way in candidates.items():
                if name not in wrong and (name == last or not number):
                    reason = _differs(reference, way, make, expected)
                    wrong |= {name: reason} if reason else {}
    return wrong


def _differs(reference: Way, way: Way, make: MakeState, expected: list[Tensor]) -> str:
    state = make()
    try:
        found = _result(way, state)
    except Exception as error:
        if graph.STRICT:
            raise
        return f"fails on the {state.name}: {last_line(error)}"
    _give_back(expected)
    far = [k for k, (a, b) in enumerate(zip(expected, found, strict=True)) if not _close(a, b)]
    if far and not _says_nothing(reference, make(), expected, far):
        return f"is another on the {state.name}"
    return ""


def last_line(error: Exception) -> str:
    """What an exception says at its end."""
    return (str(error).strip() or type(error).__name__).splitlines()[-1].strip()


def _result(way: Way, state: State) -> list[Tensor]:
    way(state)
    return state.carry


def _give_back(like: list[Tensor]) -> None:
    """Give memory that was freed back to the system, where there is much of it: engines ask the
    allocator to keep it, and the next state may not fit into the holes that one leaves."""
    if sum(t.nbytes for t in like) >= _MUCH and sys.platform.startswith("linux"):
        with contextlib.suppress(OSError, AttributeError):  # another C library
            ctypes.CDLL(None).malloc_trim(0)


def _close(a: Tensor, b: Tensor, share: float = 1.0) -> bool:
    """Whether two tensors are the same to the tolerance; where one is not finite, neither is."""
    if not a.is_floating_point():
        return torch.equal(a, b)
    apart = whole = 0.0
    for one, other in zip(_blocks(a.flatten()), _blocks(b.flatten()), strict=True):
        finite = torch.isfinite(one)
        if not bool(finite.all()):
            if not torch.equal(finite, torch.isfinite(other)):
                return False
            one, other = one[finite], other[finite]
        apart += float((one - other).norm(dtype=torch.float64) ** 2)
        whole += float(one.norm(dtype=torch.float64) ** 2)
    limit = share * TOLERANCE.get(a.dtype, _COARSE) * math.sqrt(whole)
    return math.sqrt(apart) <= limit + 1e-30


def _says_nothing(reference: Way, state: State, expected: list[Tensor], far: Sequence[int]) -> bool:
    """Whether rounding alone moves the reference's own result that far: a network of ones may give
    all classes one logit, and rounding then says which is first."""
    source = Generator().manual_seed(2)
    moved = _result(reference, state._replace(carry=[_nudged(t, source) for t in state.carry]))
    return all(not _close(expected[k], moved[k], _STEADY) for k in far)


def _nudged(tensor: Tensor, source: Generator) -> Tensor:
    """A tensor with other last bits."""
    if not tensor.is_floating_point():
        return tensor
    noise = torch.empty(tensor.shape, dtype=tensor.dtype).uniform_(-1, 1, generator=source)
    return tensor * (1 + 4 * torch.finfo(tensor.dtype).eps * noise.to(tensor.device))


def check_factored(reference: Way, script: FactoredScript, given: State) -> Refused | None:
    """Two steps from one model for all, with the first layer's weights and without them."""
    source = Generator().manual_seed(0)
    with replaying():
        for theta in (given.carry[0][0], _raised(given.carry[0][0].clone(), source)):
            clients = len(given.carry[0])
            start = [theta.expand(clients, -1), *given.carry[1:]]
            steps = [given.batch, [_shrunk(t, source) for t in given.batch]]
            plain = given._replace(carry=[t.clone() for t in start])
            for batch in steps:
                reference(plain._replace(batch=batch))
            found = _factored(script, given._replace(carry=start), steps)
            if not all(map(_close, plain.carry, found)):
                return Refused("the factored step is another than the captured one")
    return None


def _factored(script: FactoredScript, given: State, steps: list[list[Tensor]]) -> list[Tensor]:
    """The carry after these steps, the first layer's weights put together again."""
    where, theta = script.factors, given.carry[0][0]
    clients, length = given.batch[0].shape[:2]
    x = torch.cat([batch[0].reshape(clients, length, -1) for batch in steps], 1)
    layer = slice(where.start, where.start + where.size)
    weight = theta[layer].view(where.outputs, where.inputs)
    outputs = x @ weight.t()
    seen = FactoredInputs(outputs, x @ x.transpose(1, 2), torch.empty_like(outputs))
    rest = torch.cat([theta[: where.start], theta[layer.stop :]]).expand(clients, -1).clone()
    others = [t.clone() for t in given.carry[1:]]
    columns = [torch.stack(pair) for pair in zip(*(batch[1:] for batch in steps), strict=True)]
    script([rest, *others], list(given.fixed), seen, columns, 0, length, given.rate)
    moved = weight + seen.factors.transpose(1, 2) @ x
    parts = [rest[:, : where.start], moved.view(clients, -1), rest[:, where.start :]]
    return [torch.cat(parts, 1), *others]
