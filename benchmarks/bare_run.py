"""R10 by hand: logistic regression on digits, evaluated and written every round.

    python bare_run.py FOLDER TARGET

``FOLDER/work.npz`` says which rows are whose and who trains when, as ``shoal run`` would have it.
"""

from __future__ import annotations

import json
import sys
import time
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from safetensors.torch import save_file

RATE, BATCH = 0.05, 32


def main(folder: Path, target: Path) -> None:
    torch.set_num_threads(1)
    target.mkdir()
    work = np.load(folder / "work.npz")
    found = find_spec("sklearn")
    assert found and found.origin
    table = np.loadtxt(Path(found.origin).parent / "datasets/data/digits.csv.gz", delimiter=",")
    x = torch.as_tensor(table[:, :64] / 16.0, dtype=torch.float32)
    y = torch.as_tensor(table[:, 64], dtype=torch.int64)
    test_x, test_y = x[work["test"]], y[work["test"]]
    edges = zip(work["ends"], work["ends"][1:], strict=False)
    members = [torch.from_numpy(work["rows"][i:j]) for i, j in edges]
    held = [(x[rows], y[rows]) for rows in members]
    module = torch.nn.Linear(64, 10)
    parameters = list(module.parameters())
    stored = [p.data for p in parameters]
    stored[0].copy_(torch.from_numpy(work["weight"]))
    stored[1].copy_(torch.from_numpy(work["bias"]))
    model = [s.clone() for s in stored]
    with (target / "rounds.jsonl").open("ab", buffering=0) as log:
        for number, cohort in enumerate(work["cohorts"].tolist()):
            begin = time.perf_counter()
            rows = sum(len(members[client]) for client in cohort)
            total = [torch.zeros_like(m) for m in model]
            for client in cohort:
                torch._foreach_copy_(stored, model)
                mine_x, mine_y = held[client]
                for i in range(0, len(mine_y), BATCH):
                    loss = F.cross_entropy(module(mine_x[i : i + BATCH]), mine_y[i : i + BATCH])
                    gradients = torch.autograd.grad(loss, parameters)
                    torch._foreach_add_(stored, gradients, alpha=-RATE)
                torch._foreach_add_(total, stored, alpha=len(mine_y) / rows)
            model = total
            with torch.no_grad():
                logits = F.linear(test_x, *model)
                accuracy = (logits.argmax(1) == test_y).float().mean().item()
                loss_now = F.cross_entropy(logits, test_y).item()
            record = {"round": number, "cohort": cohort, "accuracy": accuracy, "loss": loss_now}
            record["seconds"] = time.perf_counter() - begin
            log.write((json.dumps(record) + "\n").encode())
    named = dict(zip(("head.weight", "head.bias"), model, strict=True))
    save_file(named, target / "model.safetensors")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
