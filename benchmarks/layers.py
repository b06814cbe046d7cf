"""``make bench-layers``: what dropout, augmentation and a frozen body cost.

A network with dropout beside the same one without, and augmented batches beside plain ones, on the
same engine; a network with a frozen body beside a bare loop that freezes it. They take turns: the
machine changes its speed within a run by more than the bars allow, so ratios of neighbours count.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from importlib import import_module
from importlib.util import find_spec

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from benchmarks.federation import rounds_of
from benchmarks.loads import LOADS, Load
from benchmarks.networks import ResNet, TextTransformer
from shoal.data.augment import Augment
from shoal.models.adapters import Adapters

RATE = 0.05
Play = Callable[[int], object]  # a round by its number


def perceptron(drop: float) -> nn.Module:
    """W1's network with dropout of its inputs and its hidden layer."""
    layers = nn.Dropout(drop), nn.Linear(784, 200), nn.ReLU(), nn.Dropout(drop)
    return nn.Sequential(*layers, nn.Linear(200, 10))


def frozen_body() -> nn.Module:
    """ResNet-8 whose head alone is trained."""
    net = ResNet((16, 32, 64), 1, nn.BatchNorm2d).requires_grad_(False)
    net.head.requires_grad_(True)
    return net


def frozen_first() -> nn.Module:
    """The text transformer whose table and first layer are frozen."""
    net = TextTransformer()
    for part in (net.embed, net.layers[0]):  # type: ignore[index]
        part.requires_grad_(False)
    return net


def with_adapters() -> nn.Module:
    """The text transformer with LoRA of rank 8 on every linear layer."""
    return Adapters().put_on(TextTransformer())


def by_peft() -> nn.Module:
    """The same by peft, for the bare loop."""
    net = TextTransformer()
    names = [name for name, layer in net.named_modules() if isinstance(layer, nn.Linear)]
    config = import_module("peft").LoraConfig(r=8, lora_alpha=8, target_modules=names)
    found: nn.Module = import_module("peft").get_peft_model(net, config)
    return found


def dropped(name: str, drop: float) -> Load:
    build = {"W1": perceptron, "R3": lambda drop: TextTransformer(drop=drop)}[name]
    return replace(LOADS[name], build=partial(build, drop))


AUGMENTED = {"W3 crop, flip": Augment(crop=2, flip=True)}
CASES: dict[str, tuple[str, Load]] = {
    "W3 crop, flip": ("W3", LOADS["W3"]),
    "W1 dropout .1": ("W1", dropped("W1", 0.1)),
    "W1 dropout .5": ("W1", dropped("W1", 0.5)),
    "R3 dropout .1": ("R3", dropped("R3", 0.1)),
    "R3 dropout .5": ("R3", dropped("R3", 0.5)),
    "R2 frozen body": ("bare", replace(LOADS["R2"], build=frozen_body)),
    "R3 frozen first layer": ("bare", replace(LOADS["R3"], build=frozen_first)),
    "R3 LoRA": ("peft", replace(LOADS["R3"], build=with_adapters)),
}
LIMITS = {"bare": 1.1, "peft": 1.1}


class Bare:
    """The plain loop: each client's epoch, and the mean of what is trained."""

    def __init__(self, load: Load, x: Tensor, y: Tensor, cohorts: tuple[tuple[int, ...], ...]):
        torch.manual_seed(1)
        self.module, self.load, self.cohorts = load.build().train(), load, cohorts
        self.x, self.y = x.split(load.sizes), y.split(load.sizes)
        self.kept = [p for p in self.module.parameters() if p.requires_grad]
        self.kept += [b for b in self.module.buffers() if b.is_floating_point()]
        self.model = [t.detach().clone() for t in self.kept]

    def round(self, number: int) -> None:
        total = [torch.zeros_like(t) for t in self.model]
        parameters = [t for t in self.kept if t.requires_grad]
        for client in self.cohorts[number]:
            with torch.no_grad():
                for own, received in zip(self.kept, self.model, strict=True):
                    own.copy_(received)
            batches = self.x[client].split(self.load.batch), self.y[client].split(self.load.batch)
            for x, y in zip(*batches, strict=True):
                slopes = torch.autograd.grad(cross_entropy(self.module(x), y), parameters)
                with torch.no_grad():
                    torch._foreach_add_(parameters, slopes, alpha=-RATE)
            share = 1 / len(self.cohorts[number])
            torch._foreach_add_(total, [t.detach() for t in self.kept], alpha=share)
        self.model = total


def seconds(play: Play, numbers: range) -> float:
    begin = time.process_time()
    for number in numbers:
        play(number)
    return (time.process_time() - begin) / len(numbers)


def measure(name: str, repeats: int) -> Iterator[tuple[float, float]]:
    """Seconds a round of the base and of the case, turn by turn."""
    base, load = CASES[name]
    x, y = load.data()
    turn = load.turn
    count = turn * (repeats + 2)
    case = rounds_of(load, x, y, count, 1, torch.float32, AUGMENTED.get(name)).round
    if base in ("bare", "peft"):
        plain = load if base == "bare" else replace(load, build=by_peft)
        other: Play = Bare(plain, x, y, load.cohorts(count)).round
    else:
        other = rounds_of(LOADS[base], x, y, count, 1, torch.float32).round
    for play in (other, case):
        seconds(play, range(2 * turn))
    for k in range(2, repeats + 2):
        numbers = range(k * turn, (k + 1) * turn)
        yield seconds(other, numbers), seconds(case, numbers)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("cases", nargs="*", help="beginnings of names; all where there are none")
    parser.add_argument("--repeats", type=int, default=7)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    for name, (base, _) in CASES.items():
        if asked.cases and not name.startswith(tuple(asked.cases)):
            continue
        if base == "peft" and find_spec("peft") is None:
            print(f"{name:22} left out: peft is not installed (pip install 'shoal[hf]')")
            continue
        turns = list(measure(name, asked.repeats))
        ratios = [case / other for other, case in turns]
        ratio, limit = statistics.median(ratios), LIMITS.get(base, 1.3)
        before = f"{base} {1e3 * statistics.median(other for other, _ in turns):.1f} ms"
        spread = f"({min(ratios):.2f} to {max(ratios):.2f}; {before})"
        print(
            f"{name:22} {ratio:.3f} {spread}  bar {limit}{'  over' * (ratio > limit)}", flush=True
        )


if __name__ == "__main__":
    main()
