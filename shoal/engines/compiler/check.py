"""Whether a rewritten step does what the captured one does, tried on several states.

The tensors at hand alone prove little: momentum, variates and duals are zero at the start, and a
pass that drops them agrees there. So there are two states beside with everything moved, and one
whose carry is ones.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Generator, Tensor

from shoal.engines.compiler import settings
from shoal.engines.compiler.capture import Untraceable
from shoal.engines.compiler.emit_factored import FactoredScript
from shoal.engines.compiler.graph import Refused
from shoal.engines.compiler.steps import Seen

# Relative, of two ways to do a step, by the norm of each tensor.
TOLERANCE = {torch.float64: 1e-10, torch.float32: 1e-4}
_COARSE = 2e-2  # of half precision
# How far rounding may move a step's result, relative, for a state to say anything at that
# tolerance.
_STEADY = 0.1


GIVEN = "given state"


class State(NamedTuple):
    """What a step reads, and what to call it."""

    name: str
    carry: list[Tensor]
    fixed: list[Tensor]
    batch: list[Tensor]
    rate: float


Way = Callable[[State], None]  # to do a step; the state's carry is updated in place


def states(given: State, read: Sequence[int]) -> Iterator[State]:
    """The states that steps are compared on; ``read`` are the fixed inputs that a step reads.

    Each is made when it is asked for, so that only one is in memory.
    """
    yield given
    for number, rate in enumerate((1.0, 0.3)):
        source = Generator().manual_seed(number)
        yield State(
            f"perturbed state {number + 1}",
            [_raised(t, source) for t in given.carry],
            [_raised(t, source) if k in read else t for k, t in enumerate(given.fixed)],
            [_shrunk(t, source) for t in given.batch],
            rate,
        )
    ones = [torch.ones_like(t) if t.is_floating_point() else t for t in given.carry]
    yield given._replace(name="carry of ones", carry=ones)


def _raised(tensor: Tensor, source: Generator) -> Tensor:
    """A tensor of numbers a little larger, laid out as it was: what is positive stays so, what is
    zero does not stay zero, what is repeated (stride 0) stays equal."""
    if not tensor.is_floating_point() or not tensor.numel():
        return tensor
    sizes = [1 if step == 0 else n for n, step in zip(tensor.shape, tensor.stride(), strict=True)]
    noise = torch.empty(sizes, dtype=tensor.dtype).uniform_(generator=source).to(tensor.device)
    width = float(tensor.abs().mean()) if bool(tensor.isfinite().all()) else 1.0
    moved = tensor[tuple(slice(0, n) for n in sizes)] + noise.mul_(0.1 * width or 0.1)
    found = torch.empty_strided(
        sizes, [max(s, 1) for s in tensor.stride()], dtype=tensor.dtype, device=tensor.device
    )
    return found.copy_(moved).expand(tensor.shape)


def _shrunk(tensor: Tensor, source: Generator) -> Tensor:
    """Numbers a little nearer to zero: weights stay weights, and numbers of words stay in range."""
    if not tensor.is_floating_point():
        return tensor
    noise = torch.empty(tensor.shape, dtype=tensor.dtype).uniform_(0.9, 1.0, generator=source)
    return tensor * noise.to(tensor.device)


def agree(
    reference: Way, candidates: Sequence[tuple[str, Way]], tried: Iterator[State]
) -> dict[str, str]:
    """Which candidates do otherwise than the reference, and in what state."""
    wrong: dict[str, str] = {}
    with torch.inference_mode():
        for state in tried:
            try:
                expected = _result(reference, state)
            except (RuntimeError, IndexError) as error:
                if state.name != GIVEN:
                    continue  # not a state that this step is ever in
                said = str(error).strip().splitlines()[0]
                raise Untraceable(f"the step cannot be replayed: {said}") from error
            for name, way in candidates:
                if name in wrong:
                    continue
                try:
                    found = _result(way, state)
                except Exception as error:
                    if settings.STRICT:
                        raise
                    wrong[name] = f"fails on the {state.name}: {last_line(error)}"
                    continue
                pairs = enumerate(zip(expected, found, strict=True))
                far = [k for k, (a, b) in pairs if not _close(a, b)]
                if far and not _says_nothing(reference, state, expected, far):
                    wrong[name] = f"is another on the {state.name}"
    return wrong


def last_line(error: Exception) -> str:
    """What an exception says at its end."""
    return (str(error).strip() or type(error).__name__).splitlines()[-1].strip()


def _result(way: Way, state: State) -> list[Tensor]:
    own = state._replace(carry=[t.clone() for t in state.carry], fixed=list(state.fixed))
    way(own)
    return own.carry


def _close(a: Tensor, b: Tensor, share: float = 1.0) -> bool:
    if not a.is_floating_point():
        return torch.equal(a, b)
    finite = torch.isfinite(a)
    if not bool(finite.all()):
        if not torch.equal(finite, torch.isfinite(b)):
            return False
        a, b = a[finite], b[finite]
    limit = share * TOLERANCE.get(a.dtype, _COARSE) * a.norm(dtype=torch.float64)
    return bool((a - b).norm(dtype=torch.float64) <= limit + 1e-30)


def _says_nothing(reference: Way, state: State, expected: list[Tensor], far: Sequence[int]) -> bool:
    """Whether rounding alone moves the reference's own result that far: a network of ones may give
    all classes one logit, and rounding then says which is first."""
    source = Generator().manual_seed(2)
    nudged = state._replace(carry=[_nudged(t, source) for t in state.carry])
    moved = _result(reference, nudged)
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
    with torch.inference_mode():
        for theta in (given.carry[0][0], _raised(given.carry[0][0], source)):
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
    seen = Seen(outputs, x @ x.transpose(1, 2), torch.empty_like(outputs))
    rest = torch.cat([theta[: where.start], theta[layer.stop :]]).expand(clients, -1).clone()
    others = [t.clone() for t in given.carry[1:]]
    columns = [torch.stack(pair) for pair in zip(*(batch[1:] for batch in steps), strict=True)]
    script([rest, *others], list(given.fixed), seen, columns, 0, length, given.rate)
    moved = weight + seen.factors.transpose(1, 2) @ x
    parts = [rest[:, : where.start], moved.view(clients, -1), rest[:, where.start :]]
    return [torch.cat(parts, 1), *others]
