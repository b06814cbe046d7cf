"""Data, network, loss, method and metric of your own in one module; a run of it killed and resumed.

    python examples/own_everything.py
    shoal run examples/own.yaml -o runs/own          # the same from the command line

A config names what stands here as `own_everything:Net`. The run directory keeps the digest of this
file, and is resumed on the same code only.
"""

import multiprocessing
import os
import signal
import tempfile
from dataclasses import dataclass
from pathlib import Path

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from shoal import resume, run
from shoal.core.tree import Tree
from shoal.core.types import Work
from shoal.methods.method import Method
from shoal.methods.slots import Part
from shoal.methods.view import View

Rows = tuple[Tensor, Tensor]
RARE = 8  # digits from here on are rare in training


def load(share: float = 0.1) -> tuple[Rows, Rows]:
    """Digits to train on and to test on; of the last two, only a share of the training rows."""
    digits = load_digits()
    x = torch.tensor(digits.data / 16, dtype=torch.float32)
    y = torch.tensor(digits.target)
    draw = torch.Generator().manual_seed(0)
    test, train = torch.randperm(len(y), generator=draw).split([450, len(y) - 450])
    kept = (y[train] < RARE) | (torch.rand(len(train), generator=draw) < share)
    return (x[train[kept]], y[train[kept]]), (x[test], y[test])


class Net(nn.Module):
    """A random first layer that stays as it is, then dropout and a layer that is trained.

    `shape` and `outputs` (or `classes`) are filled from the data, the rest from the config.
    """

    def __init__(
        self, shape: tuple[int, ...], outputs: int, width: int = 128, dropout: float = 0.1
    ) -> None:
        super().__init__()
        self.body = nn.Linear(shape[0], width).requires_grad_(False)
        self.dropout = nn.Dropout(dropout)
        self.head = nn.Linear(width, outputs)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.dropout(torch.relu(4 * self.body(x))))


def focal(outputs: Tensor, targets: Tensor, gamma: float = 2.0) -> Tensor:
    """One number per row: cross-entropy, less where it is right already (Lin et al., 2017)."""
    entropy = cross_entropy(outputs, targets, reduction="none")
    return (1 - torch.exp(-entropy)) ** gamma * entropy


@dataclass(frozen=True, kw_only=True)
class ShortUpdate(Part):
    """Sends an update of at most `length`. Deviations: none."""

    length: float = 1.0

    def upload(self, view: View, delta: Tensor, work: Work) -> tuple[Tensor, Tree]:
        return delta * (self.length / torch.linalg.vector_norm(delta)).clamp(max=1.0), ()


def short_update(length: float = 1.0) -> Method:
    return Method("short_update", (ShortUpdate(length=length),), base=False)


def rare_accuracy(outputs: Tensor, labels: Tensor) -> float:
    """Accuracy on the digits that are rare in training."""
    rare = labels >= RARE
    return (outputs.argmax(-1)[rare] == labels[rare]).float().mean().item()


def play(out: Path, gamma: float = 2.0, killed_in: int | None = None) -> dict[str, Tensor]:
    """One run; the process may be killed in a round, as by a power cut."""

    def watch(record: dict[str, object]) -> None:
        if record["round"] == killed_in:
            os.kill(os.getpid(), signal.SIGKILL)

    result = run(
        out=out,
        data=load,
        model={"name": Net, "dropout": 0.1},
        loss={"name": focal, "gamma": gamma},
        method=["fedavg", {short_update: {"length": 2.0}}],
        world={"name": "static", "members": 20, "rounds": 40},
        participation=5,
        local={"epochs": 2, "lr": 0.3, "batch": 16},
        evaluate={"metrics": [rare_accuracy]},
        checkpoint={"every": 5},
        callbacks=[watch],
    )
    last = result.rounds[-1]
    rare = last["metrics"]["own_everything:rare_accuracy"]
    print(f"{out.name:8} accuracy {last['accuracy']:.3f}, on rare digits {rare:.3f}")
    return result.model


def main() -> None:
    runs = Path(tempfile.mkdtemp(prefix="own-"))
    child = multiprocessing.get_context("spawn").Process(
        target=play, args=(runs / "killed", 2.0, 17)
    )
    child.start()
    child.join()
    print(f"killed   by signal {-(child.exitcode or 0)} in round 17")
    resumed = resume(runs / "killed").model
    whole = play(runs / "whole")
    same = all(torch.equal(resumed[name], whole[name]) for name in whole)
    print(f"resumed  to the bits of a run that nobody killed: {same}")
    play(runs / "gamma0", gamma=0.0)
    print(f"compare  shoal compare {runs / 'whole'} {runs / 'gamma0'}")


if __name__ == "__main__":
    main()
