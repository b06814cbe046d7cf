"""A client as Flower's tutorials write it."""

import numpy as np
import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from torch import nn

app = ClientApp()


def model() -> nn.Module:
    return nn.Sequential(nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, 10))


def loaded(message: Message, context: Context) -> tuple[nn.Module, torch.Tensor, torch.Tensor, int]:
    torch.set_num_threads(1)
    net = model()
    net.load_state_dict(message.content["arrays"].to_torch_state_dict())
    data = np.load(str(context.node_config["data"]))
    x, y = torch.from_numpy(data["x"]), torch.from_numpy(data["y"])
    return net, x, y, int(0.8 * len(y))


@app.train()
def train(message: Message, context: Context) -> Message:
    net, x, y, cut = loaded(message, context)
    optimizer = torch.optim.SGD(net.parameters(), 0.2)
    for _ in range(5):
        for rows in torch.randperm(cut).split(16):
            optimizer.zero_grad()
            nn.functional.cross_entropy(net(x[rows]), y[rows]).backward()
            optimizer.step()
    content = RecordDict(
        {
            "arrays": ArrayRecord(net.state_dict()),
            "metrics": MetricRecord({"num-examples": cut}),
        }
    )
    return Message(content, reply_to=message)


@app.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    net, x, y, cut = loaded(message, context)
    with torch.no_grad():
        accuracy = float((net(x[cut:]).argmax(1) == y[cut:]).float().mean())
    metrics = MetricRecord({"num-examples": len(y) - cut, "accuracy": accuracy})
    return Message(RecordDict({"metrics": metrics}), reply_to=message)
