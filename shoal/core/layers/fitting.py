"""Networks that cannot be trained as they say are refused, by the name of the layer.

Part of that stands in the module. The rest (drawing inside of ``forward``, buffers that move) is
found by one forward pass in training mode, and one in evaluation, that are watched.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from itertools import filterfalse
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.modules.dropout import _DropoutNd
from torch.nn.parameter import is_lazy
from torch.utils._python_dispatch import TorchDispatchMode

from shoal.core.errors import UserError
from shoal.core.layers.drawing import LayerDraws
from shoal.core.layers.keeping import (
    check_kept,
    check_listed,
    check_tensors,
    parameters_of,
    trained_places,
)
from shoal.core.layers.normalisation import resting, set_modes
from shoal.core.rng import draws_globally
from shoal.core.types import Input, split_inputs

ROWS = 2  # of the watched pass: batch normalisation needs two


def check_layers(module: nn.Module) -> None:
    """Refuse a network with nothing to train, and layers that still have no sizes."""
    asked = [parameter.requires_grad for parameter in module.parameters()]
    if not any(asked):
        what = "no parameters with requires_grad=True" if asked else "no parameters"
        raise UserError(f"the network ({type(module).__name__}) has {what}: nothing to train")
    trained, known = trained_places(module), {id(layer) for layer in module.modules()}
    for name, layer in module.named_modules():
        if _is_compiled(layer):
            raise UserError(
                f"{_layer(name, layer)} of the network is compiled (torch.compile or torch.jit), "
                f"and so does not take other parameters; give the plain module, whose step shoal "
                f"compiles by itself"
            )
        if _is_lazy(layer):
            raise UserError(
                f"{_layer(name, layer)} of the network has no sizes before it has seen a "
                f"sample; write its sizes, as in Linear(64, 10)"
            )
        check_tensors(f"{_layer(name, layer)} of the network", layer, trained)
        check_listed(f"{_layer(name, layer)} of the network", layer, known)


def _is_compiled(layer: nn.Module) -> bool:
    if isinstance(layer, torch.jit.ScriptModule):
        return True
    own = getattr(layer, "_compiled_call_impl", None) is not None  # by ``module.compile()``
    forward = getattr(type(layer).forward, "_torchdynamo_orig_callable", None) is not None
    whole = "_orig_mod" in layer._modules  # by ``torch.compile(module)``
    return own or forward or whole


def _is_lazy(layer: nn.Module) -> bool:
    return any(map(is_lazy, (*layer.parameters(recurse=False), *layer.buffers(recurse=False))))


@torch.no_grad()
def materialise(module: nn.Module, x: Tensor | None, inputs: Sequence[Input] = ()) -> None:
    """Give layers without sizes (``nn.LazyLinear``) those that samples ask for."""
    if x is None or not any(map(_is_lazy, module.modules())):
        return
    training = {layer: layer.training for layer in module.modules()}
    with _computing(module.eval(), x, inputs) as (compute, _):
        compute()
    for layer, was in training.items():
        layer.training = was


def draws_by_layer(module: nn.Module) -> bool:
    """Whether a layer says that it draws in training; others may without saying so."""
    for layer in module.modules():
        own = "p" if isinstance(layer, _DropoutNd) else "dropout"  # of recurrent layers, attention
        rate = getattr(layer, own, 0.0)
        if isinstance(layer, nn.RReLU):
            return True
        if isinstance(rate, float | int) and rate > 0 and type(layer).__module__[:6] == "torch.":
            return True
    return False


class Habits(NamedTuple):
    """What a look at a network in training shows."""

    lone_layer: str | None  # a normalisation that a batch of a single row leaves without variance
    draws: bool  # random numbers, in training
    by_row: bool  # what a row is given does not depend on how long a batch is


def watched(
    module: nn.Module, x: Tensor, outputs: tuple[int, ...], inputs: Sequence[Input] = ()
) -> Habits:
    """Look on while a module computes two samples, and refuse what does not fit; ``outputs``: the
    shape of a row's logits."""
    x = two_rows(x).cpu()
    found: list[str] = []
    module = module.cpu()
    rests, draws = resting(module), LayerDraws(torch.tensor(0), ROWS)
    set_modes(module, True, rests)
    buffers = {n: b.clone() for n, b in module.named_buffers()}
    whole = {n: b for n, b in buffers.items() if not b.is_floating_point()}
    trained = parameters_of(module)
    with ExitStack() as stack:
        stack.enter_context(torch.enable_grad())
        compute, where = stack.enter_context(_computing(module, x, inputs))
        stack.enter_context(_Watch(where, found))
        stack.enter_context(draws)
        result = compute()
    _check_result(result, outputs)
    _check_counters(module, whole)
    check_kept(trained, parameters_of(module))
    with torch.no_grad():
        for name, buffer in module.named_buffers():
            if name in buffers and buffer.shape == buffers[name].shape:
                buffer.copy_(buffers[name])
    set_modes(module, True, rests)
    with _computing(module, x, inputs) as (compute, _), LayerDraws(torch.tensor(0), ROWS):
        again = logits_and_features(compute())[0]
    if not torch.allclose(again, logits_and_features(result)[0], 1e-3, 1e-5, equal_nan=True):
        raise UserError(
            "the network's forward gives another answer when it is asked again: it keeps a tensor "
            "or a number on self that moves in training, and that clients would share; keep it "
            "with register_buffer, or leave it out"
        )
    quiet = LayerDraws(torch.tensor(0), ROWS)
    with _computing(module.eval(), x, inputs) as (compute, where):
        with _Watch(where, []), quiet:
            compute()
        with torch.inference_mode():  # as it is evaluated
            compute()
    if quiet.calls:
        raise UserError(
            "the network draws random numbers in evaluation, too, where answers must not "
            "depend on chance; let it draw where self.training is true only, as in "
            "dropout(x, p, self.training)"
        )
    return Habits(found[0] if found else None, draws.calls > 0, draws.by_row)


def two_rows(x: Tensor) -> Tensor:
    """The first two of some rows, or what looks like them."""
    return x[[0, min(1, len(x) - 1)]] if len(x) else x.new_zeros(ROWS, *x.shape[1:])


@contextmanager
def _computing(
    module: nn.Module, x: Tensor, inputs: Sequence[Input]
) -> Iterator[tuple[Callable[[], Any], Callable[[], str]]]:
    """What computes the samples, and says which layer does; what goes wrong is told with the
    layer's name."""
    sized = filterfalse(is_lazy, module.parameters())
    like = next(filter(Tensor.is_floating_point, sized), torch.empty(0))
    x = x.to(like.device)
    if x.is_floating_point() and like.is_floating_point():
        x = x.to(like.dtype)

    def compute() -> Any:
        before = x._version
        said = module(**split_inputs(x, inputs)) if inputs else module(x)
        if x._version != before:
            raise UserError(
                "the network's forward writes over its input, which are the rows themselves; let "
                "it begin with x = x.clone()"
            )
        return said

    with _followed(module) as where:
        try:
            yield compute, where
        except UserError:
            raise
        except Exception as error:
            reason = " ".join(str(error).split())
            named = ", ".join(f"{one.name} {one.shape}" for one in inputs)
            raise UserError(
                f"{where()} of the network cannot compute samples of shape "
                f"{named or tuple(x.shape[1:])} "
                f"({type(error).__name__}: {reason})"
            ) from error


def _check_counters(module: nn.Module, before: Mapping[str, Tensor]) -> None:
    """Buffers of whole numbers stay as they are; but for counts of batches, which are not kept."""
    now = dict(module.named_buffers())
    for name, value in before.items():
        if not (name.endswith("num_batches_tracked") or torch.equal(value, now[name])):
            raise moving_counter(name)


def moving_counter(name: str) -> UserError:
    return UserError(
        f"buffer {name!r} of the network holds whole numbers and changes in training, "
        f"which is not kept between rounds; make it floating, or leave it constant."
    )


def logits_and_features(result: Any) -> tuple[Any, Any]:
    """What a network's forward said: a tensor, the pair, a mapping or an object with ``logits``
    and, where it has them, ``features`` (else the logits are the features)."""
    if isinstance(result, Mapping):
        logits, features = result.get("logits"), result.get("features")
    elif isinstance(result, tuple) and not hasattr(result, "logits"):
        logits, features = result if len(result) == 2 else (None, None)
    else:
        logits = getattr(result, "logits", result)
        features = getattr(result, "features", None)
    return logits, logits if features is None else features


def _check_result(result: Any, outputs: tuple[int, ...]) -> None:
    """Logits (``outputs``: the shape of a row's), and features where there are some."""
    logits, features = logits_and_features(result)
    if isinstance(logits, Tensor):
        if tuple(logits.shape) == (ROWS, *outputs) and logits.is_floating_point():
            if features is not logits:
                _check_features(features)
            if not logits.requires_grad:
                raise UserError(
                    "the network's forward returns logits without a gradient, so nothing would be "
                    "trained; leave out detach() and no_grad() on their way"
                )
            return
        what = f"a {str(logits.dtype)[6:]} tensor of shape {tuple(logits.shape)} for {ROWS} samples"
    elif isinstance(result, Mapping):
        what = f"a {type(result).__name__} with {', '.join(map(repr, result))}"
    else:
        several = isinstance(result, tuple)
        what = f"{len(result)} things" if several else f"a {type(result).__name__}"
    raise UserError(
        f"the network's forward returns {what}; it must return the logits, a tensor of shape "
        f"(rows, {', '.join(map(str, outputs))}), the pair (logits, features), or a dict or "
        f"dataclass with 'logits' and, if it likes, 'features'"
    )


def _check_features(features: Any) -> None:
    found = tuple(features.shape) if isinstance(features, Tensor) else type(features).__name__
    if not (isinstance(found, tuple) and len(found) == 2 and found[0] == ROWS):
        raise UserError(
            f"the network's forward returns a pair, which is read as (logits, features), and its "
            f"features are {found} for {ROWS} samples; they must have shape (rows, width): return "
            f"features.flatten(1), or the logits alone"
        )


class _Watch(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Refuses operators that draw; notes batch normalisation with one value per channel and row.

    What shoal draws by itself does not come here (see :mod:`shoal.core.layers.drawing`).
    """

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """False: else torch imports its compiler, which takes a second."""
        return False

    def __init__(self, where: Callable[[], str], lone: list[str]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._where, self._lone = where, lone
        self._others = _states()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        own = any(isinstance(a, torch.Generator) for a in (*args, *kwargs.values()))
        if own or draws_globally(func, args, kwargs):
            raise _draws(self._where())
        # A layer's, or a functional call's. Of its arguments only ``training`` is a boolean.
        if "batch_norm" in str(func) and any(a is True for a in args) and _is_single(args[0]):
            self._lone.append(self._where())
        return func(*args, **kwargs)

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)  # type: ignore[no-untyped-call]
        if error[0] is None and _states() != self._others:
            raise _draws("forward")


def _states() -> tuple[str, str]:
    """Of the generators that are not torch's."""
    return repr(random.getstate()), repr(np.random.get_state())


@contextmanager
def _followed(module: nn.Module) -> Iterator[Callable[[], str]]:
    """Says which layer is computing."""
    stack: list[tuple[str, nn.Module]] = []
    handles = []

    def enter(name: str, layer: nn.Module, inputs: tuple[Any, ...]) -> None:
        stack.append((name, layer))
        x = inputs[0] if inputs else None
        if isinstance(layer, nn.GroupNorm) and isinstance(x, Tensor):
            _check_groups(name, layer, x)

    def leave(*_: Any) -> None:
        stack.pop()

    for name, layer in module.named_modules():
        handles.append(layer.register_forward_pre_hook(partial(enter, name)))
        handles.append(layer.register_forward_hook(leave))
    try:
        yield lambda: _layer(*stack[-1]) if stack else "forward"
    finally:
        for handle in handles:
            handle.remove()


def _is_single(x: Tensor) -> bool:
    """One value per channel and row."""
    return x.dim() > 1 and x.numel() == x.shape[0] * x.shape[1]


def _check_groups(name: str, layer: nn.GroupNorm, x: Tensor) -> None:
    """Torch refuses a single row in groups of one value, in evaluation too."""
    if x.numel() == x.shape[0] * layer.num_groups:
        raise UserError(
            f"{_layer(name, layer)} of the network normalises groups of a single value, which "
            f"makes 0 of whatever it is; leave it out, or write fewer groups"
        )


def _layer(name: str, layer: nn.Module) -> str:
    """A layer in a sentence; the network itself has no name."""
    kind = type(layer).__name__
    return f"layer {name!r} ({kind})" if name else f"forward of {kind}"


def _draws(where: str) -> UserError:
    return UserError(
        f"{where} of the network draws random numbers in a way that shoal cannot repeat on every "
        f"engine; use torch's dropout, rand, randn, randint, randperm or bernoulli, without a "
        f"generator of its own"
    )
