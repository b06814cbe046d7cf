"""Federated averaging in plain torch: nothing of shoal is used here.

Read it top to bottom and you know what one round of FedAvg is. shoal's `loop` engine, fed the same
clients, cohorts and batch orders, ends at the same weights; a test holds the two together.

    python examples/fedavg_by_hand.py

Reference: McMahan et al., Communication-Efficient Learning of Deep Networks from Decentralized
Data, AISTATS 2017, Algorithm 1.
"""

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

State = dict[str, Tensor]  # the weights of a model, by name
Client = tuple[Tensor, Tensor]  # the samples and the labels of one client


def mlp() -> nn.Module:
    """64 pixels -> 64 hidden units -> 10 digits."""
    return nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))


def train(model: nn.Module, start: State, data: Client, order: list[Tensor], rate: float) -> State:
    """What one client does: one step of SGD from `start` for each batch of rows in `order`."""
    model.load_state_dict(start)
    x, y = data
    for rows in order:
        model.zero_grad()
        cross_entropy(model(x[rows]), y[rows]).backward()
        with torch.no_grad():
            for weight in model.parameters():
                weight -= rate * weight.grad
    return {name: weight.clone() for name, weight in model.state_dict().items()}


def fedavg(
    initial: State,
    clients: list[Client],
    cohorts: list[list[int]],
    batches: list[dict[int, list[Tensor]]],
    rate: float,
    model: nn.Module | None = None,
) -> State:
    """Run one round for each entry of `cohorts` and return the final weights.

    initial   the weights that the server starts from
    clients   the data of every client; a client's number is its place in this list
    cohorts   cohorts[r] are the numbers of the clients that train in round r
    batches   batches[r][i] are the batches of client i in round r, each a tensor of row numbers
    rate      the learning rate of the clients' SGD
    model     the network that the weights belong to: the MLP above unless you bring another
    """
    model = mlp() if model is None else model
    server = {name: weight.clone() for name, weight in initial.items()}
    for cohort, orders in zip(cohorts, batches, strict=True):
        total = sum(len(clients[i][1]) for i in cohort)
        update = {name: torch.zeros_like(weight) for name, weight in server.items()}
        for i in sorted(cohort):
            local = train(model, server, clients[i], orders[i], rate)
            share = len(clients[i][1]) / total  # a client counts as much as it has samples
            for name in update:
                update[name] += share * (local[name] - server[name])
        server = {name: server[name] + update[name] for name in server}
    return server


def split(y: Tensor, clients: int, g: torch.Generator) -> list[Tensor]:
    """Rows of each client: sort by label, cut into two shards a client, deal them at random.

    Most clients then know two or three of the ten digits, which is what makes the problem hard.
    """
    shards = y.argsort(stable=True).tensor_split(2 * clients)
    deal = torch.randperm(2 * clients, generator=g).tolist()
    return [torch.cat([shards[a], shards[b]]) for a, b in zip(deal[::2], deal[1::2], strict=True)]


def draw_batches(n: int, size: int, epochs: int, g: torch.Generator) -> list[Tensor]:
    """A new order of the n rows in every epoch, cut into batches; the last may be smaller."""
    return [rows for _ in range(epochs) for rows in torch.randperm(n, generator=g).split(size)]


def accuracy(state: State, x: Tensor, y: Tensor) -> float:
    model = mlp()
    model.load_state_dict(state)
    with torch.no_grad():
        return (model(x).argmax(dim=1) == y).float().mean().item()


def main(rounds: int = 60, seed: int = 0) -> float:
    """Twenty clients, five of them in a round; returns the last accuracy on held-out digits."""
    torch.manual_seed(seed)  # the initial weights
    g = torch.Generator().manual_seed(seed)  # everything else that is drawn
    digits = load_digits()
    x = torch.tensor(digits.data / 16, dtype=torch.float32)
    y = torch.tensor(digits.target)
    test, rest = torch.randperm(len(y), generator=g).split([360, len(y) - 360])
    clients = [(x[rest][rows], y[rest][rows]) for rows in split(y[rest], 20, g)]

    state, every = mlp().state_dict(), 10
    for done in range(0, rounds, every):
        now = min(every, rounds - done)
        cohorts = [torch.randperm(20, generator=g)[:5].tolist() for _ in range(now)]
        batches = [{i: draw_batches(len(clients[i][1]), 16, 2, g) for i in c} for c in cohorts]
        state = fedavg(state, clients, cohorts, batches, rate=0.1)
        print(f"round {done + now:3d}  accuracy {accuracy(state, x[test], y[test]):.3f}")
    return accuracy(state, x[test], y[test])


if __name__ == "__main__":
    main()
