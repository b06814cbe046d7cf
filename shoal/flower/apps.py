"""The two apps that Flower runs: the server's loop, and a client for stock SuperNodes."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path

from flwr.app import Context, Message
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.superlink.grid import InMemoryGrid

from shoal.errors import UserError
from shoal.flower.agreement import Agreement, load
from shoal.flower.keys import Key, new_key, read_key
from shoal.flower.node import Node
from shoal.flower.own_data import NodeData, from_loader, from_path
from shoal.flower.post import envelope, opened
from shoal.flower.rules import from_run_config

OUT = "out"  # the run directory, in the run config
SIMULATED = "partition-id"  # what Flower's simulator tells every node


def server_app(agreement: Path) -> ServerApp:
    """A server app for an agreement; ``out`` in the run config is the directory of the run."""
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        from shoal.flower.server import Server

        values = dict(context.run_config)
        out = str(values.pop(OUT, "") or "flower-run")
        rules = from_run_config(values)
        if isinstance(grid, InMemoryGrid):  # a simulation: nobody is there to be kept out
            rules = replace(rules, insecure=True)
        Server(grid, load(agreement), rules, Path(out).absolute(), _said).play()

    return app


def _said(text: str) -> None:
    print(f"shoal: {text}", flush=True)


def client_app(agreement: Path) -> ClientApp:
    """A client app for stock SuperNodes and for simulations.

    A SuperNode's ``--node-config`` names its ``data`` (or ``loader``), ``key``, ``name`` and
    ``home``. In a simulation members have the data of the config that the app was made from.
    """
    app = ClientApp()

    def answer(message: Message, context: Context) -> Message:
        node = _node(agreement, tuple(sorted(_settings(context).items())))
        frame, signature = node.reply(opened(message.content)[0])
        return Message(envelope(frame, signature), reply_to=message)

    for register in (app.train, app.query, app.evaluate):
        register()(answer)
    return app


def _settings(context: Context) -> dict[str, str]:
    given = {key: str(value) for key, value in context.node_config.items()}
    given[OUT] = str(context.run_config.get(OUT, "") or "flower-run")
    return given


@cache
def _node(path: Path, settings: tuple[tuple[str, str], ...]) -> Node:
    """The node of these settings; a process makes it once."""
    given, agreed = dict(settings), load(path)
    if agreed.secure is not None:
        raise UserError("secure aggregation needs shoal flower node: a stock SuperNode starts a "
                        "new process for every message, which forgets the keys")  # fmt: skip
    if SIMULATED in given:
        return _simulated(path, agreed, int(given[SIMULATED]), Path(given[OUT]).absolute())
    missing = [name for name in ("key", "name", "home") if name not in given]
    if missing:
        raise UserError(f"--node-config needs {missing[0]} (and key, name, home, data or loader)")
    return Node(
        agreed,
        data_of(given.get("data"), given.get("loader"), agreed),
        read_key(Path(given["key"])),
        given["name"],
        Path(given["home"]),
    )


def data_of(
    data: str | None, loader: str | None, agreed: Agreement, x: str | None = None, y: str = "y"
) -> NodeData:
    """A node's data, from exactly one of a path and a loader."""
    if (data is None) == (loader is None):
        raise UserError("a node needs --data PATH or --loader module:function, and not both")
    if loader is not None:
        return from_loader(loader, agreed.expects)
    return from_path(Path(data or "").expanduser(), agreed.expects, x=x, y=y)


def _simulated(path: Path, agreed: Agreement, member: int, out: Path) -> Node:
    """A member of the config's own world, for ``flwr run`` without machines."""
    from shoal.config import load as load_config
    from shoal.config.build import build

    plan = build(load_config(path.with_name("simulation.yaml"), ["engine=loop"]))
    train = plan.world.train(member, 0)
    held = plan.world.validation(member, 0)
    home = out / "nodes" / f"{member:05d}"
    return Node(agreed, NodeData(train, held), _kept(home / "key"), f"member-{member:05d}", home)


def _kept(path: Path) -> Key:
    return read_key(path) if path.exists() else new_key(path)
