"""How a network is differentiated: found on two rows before the first round, by torch's gradient.

Engines take a gradient with ``torch.func``, which maps over clients. A network that it cannot see
through (packed sequences, ``x.numpy()``, an ``autograd.Function`` of the older form, hooks on a
layer's gradient) is left to torch's autograd, a client at a time. What neither differentiates as
torch does the plain module is refused.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor, nn

from shoal.core.errors import UserError
from shoal.core.layers.drawing import LayerDraws
from shoal.core.layers.fitting import logits_and_features, two_rows
from shoal.core.layers.normalisation import resting, set_modes
from shoal.core.task import ModuleTask, in_unit
from shoal.core.types import Batch, split_inputs
from shoal.engines.client_round import grad

NEAR, NOISE = 1e-2, 1e-4  # of a parameter's own gradient, and of the whole
Slopes = dict[str, Tensor]


@torch.no_grad()  # as a client's round is played
def differentiable(task: ModuleTask, network: nn.Module) -> ModuleTask:
    """The task, with ``by_autograd`` where ``torch.func`` cannot differentiate it."""
    assert task.sample is not None
    x = two_rows(task.sample).cpu()
    x = x.to(task.dtype) if x.is_floating_point() else x
    state = {**dict(network.named_buffers()), **network.state_dict()}
    state = {name: value.detach().clone() for name, value in state.items()}
    wanted = _of_torch(task, network, x)
    for name, buffer in network.named_buffers():  # a network that is somebody's own stays as it was
        if name in state and buffer.shape == state[name].shape:
            buffer.copy_(state[name])
    why = ""
    for by_autograd in (False, True):
        chosen = replace(task, by_autograd=True) if by_autograd else task
        try:
            found = _of_task(chosen, state, x)
        except UserError:
            raise
        except Exception as error:
            why = why or f"{type(error).__name__}: {_short(error)}"
            continue
        other = _another(found, wanted)
        if not other:
            return chosen
        why = why or f"parameter {other!r} gets another gradient than torch's own"
    raise UserError(
        f"the network cannot be trained as a function of its parameters ({why}); in the way are "
        f"mostly checkpointing, which computes again after the pass, and tensors that are changed "
        f"in place"
    )


def _of_torch(task: ModuleTask, network: nn.Module, x: Tensor) -> Slopes:
    """The gradient of the plain module, in training mode; itself, since a copy would not have what
    a function of its own holds."""
    module = network.cpu().to(task.dtype)
    module.zero_grad()
    resting(module)
    set_modes(module, True, task.rests)
    try:
        with torch.enable_grad(), LayerDraws(torch.tensor(0), len(x)):
            with torch.autocast("cpu", task.autocast, task.autocast is not None):
                own = x.clone()
                said = module(**split_inputs(own, task.inputs)) if task.inputs else module(own)
            logits = logits_and_features(said)[0].to(task.dtype)
            _weighed(in_unit(logits, task.unit) if task.unit else logits).backward()  # type: ignore[no-untyped-call]
    except UserError:
        raise
    except Exception as error:
        raise UserError(
            f"the network cannot be trained: its backward pass fails in torch itself "
            f"({type(error).__name__}: {_short(error)})"
        ) from error
    asked = {n: p for n, p in module.named_parameters() if p.requires_grad}
    found = {n: torch.zeros_like(p) if p.grad is None else _dense(p.grad) for n, p in asked.items()}
    module.zero_grad()
    return found


def _of_task(task: ModuleTask, state: Slopes, x: Tensor) -> Slopes:
    held = task.holding({name: value for name, value in state.items() if name in task.frozen})
    model = held.pack(state)
    batch = Batch(x, torch.zeros(len(x)), key=torch.tensor(0))

    def value(theta: Tensor) -> Tensor:
        return _weighed(held.forward(theta, batch, model.stats, True).logits)

    return held.layout.unflatten(grad(value, task.by_autograd)(model.theta))


def _weighed(logits: Tensor) -> Tensor:
    """A sum in which every number counts differently: one of probabilities has no gradient."""
    weights = torch.linspace(0.5, 1.5, logits.numel(), dtype=logits.dtype)
    return (logits * weights.view_as(logits)).sum()


def _dense(slope: Tensor) -> Tensor:
    return slope.to_dense() if slope.is_sparse else slope


def _another(found: Slopes, wanted: Slopes) -> str:
    """The first parameter whose gradient is another; "" if there is none."""
    whole = sum(float(s.nan_to_num().norm()) ** 2 for s in wanted.values()) ** 0.5
    for name, slope in wanted.items():
        apart = float((found[name] - slope).nan_to_num().norm())
        if apart > NEAR * float(slope.nan_to_num().norm()) + NOISE * whole:
            return name
    return ""


def _short(error: Exception) -> str:
    return " ".join(str(error).split())[:160]
