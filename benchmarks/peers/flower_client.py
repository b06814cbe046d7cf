"""The leanest reasonable Flower client: model and data kept in each Ray actor, one torch thread."""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from benchmarks.bare import BareLoop
from benchmarks.peers.torch_bare import workload
from benchmarks.peers.work import Work

app = ClientApp()


@cache
def prepared() -> tuple[Work, BareLoop]:
    torch.set_num_threads(1)
    work = Work.load(Path(os.environ["SHOAL_BENCH_WORK"]))
    return work, BareLoop(workload(work))


@app.train()  # type: ignore[untyped-decorator]
def train(message: Message, context: Context) -> Message:
    work, loop = prepared()
    loop.module.load_state_dict(message.content["arrays"].to_torch_state_dict())
    client = int(context.node_config["partition-id"])
    x, y = torch.from_numpy(work.x[client]), torch.from_numpy(work.y[client])
    for i, j in work.cuts():
        loop.local_step(x[i:j], y[i:j])
    told = {
        "arrays": ArrayRecord(loop.module.state_dict()),
        "metrics": MetricRecord({"num-examples": len(y)}),
    }
    return Message(content=RecordDict(told), reply_to=message)
