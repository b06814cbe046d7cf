"""The two apps that Flower runs (the server's loop, and a client for stock SuperNodes), and
``shoal flower new``: an app in the layout that Flower users expect, from a config."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import cache
from pathlib import Path

import torch
from flwr.app import Context, Message
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.superlink.grid import InMemoryGrid

from shoal.config import Config
from shoal.config.build import build
from shoal.config.subject import dataset_of
from shoal.core.errors import UserError
from shoal.core.files import asset, dump_yaml, write_text
from shoal.core.types import ClientData
from shoal.data.later_rows import as_written
from shoal.data.sources import Dataset
from shoal.data.sources.own_files import Columns
from shoal.data.tables import Array, of_arrays
from shoal.flower.agreed_code import agreed_code
from shoal.flower.agreement import Agreement, Bounds, Rules, load_agreement, rules_from
from shoal.flower.data_form import DataForm
from shoal.flower.keys import Key, new_key, read_key
from shoal.flower.masking import Secure
from shoal.flower.messages import from_flower, to_flower
from shoal.flower.node.figures import UnpreparedRows, unprepared, unprepared_table
from shoal.flower.node.node import Node
from shoal.flower.node.own_data import NodeData, from_loader, from_path

OUT = "out"  # the run directory, in the run config
SIMULATED = "partition-id"  # what Flower's simulator tells every node


def server_app(agreement: Path) -> ServerApp:
    """A server app for an agreement; ``out`` in the run config is the directory of the run."""
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        from shoal.flower.server.server import Server

        values = dict(context.run_config)
        out = str(values.pop(OUT, "") or "flower-run")
        rules = rules_from(values)
        if isinstance(grid, InMemoryGrid):  # a simulation: nobody is there to be kept out
            rules = replace(rules, insecure=True)
        Server(grid, load_agreement(agreement), rules, Path(out).absolute(), _said).play()

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
        frame, signature = node.reply(from_flower(message.content)[0])
        return Message(to_flower(frame, signature), reply_to=message)

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
    given, agreed = dict(settings), load_agreement(path)
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
    data: str | None, loader: str | None, agreed: Agreement, x: str | None = None, y: Columns = "y"
) -> NodeData | UnpreparedRows:
    """A node's data, from exactly one of a path and a loader."""
    if (data is None) == (loader is None):
        raise UserError("a node needs --data PATH or --loader module:function, and not both")
    if agreed.expects.table is not None:
        if data is None:
            raise UserError("--loader gives arrays, and this federation prepares the columns of "
                            "tables together (expects.table); give --data PATH")  # fmt: skip
        return unprepared(Path(data).expanduser(), agreed.expects)
    if loader is not None:
        return from_loader(loader, agreed.expects)
    return from_path(Path(data or "").expanduser(), agreed.expects, x=x, y=y)


def _simulated(path: Path, agreed: Agreement, member: int, out: Path) -> Node:
    """A member of the config's own world, for ``flwr run`` without machines."""
    from shoal.config import load as load_config
    from shoal.config.build import build

    config = load_config(path.with_name("simulation.yaml"), ["engine=loop"])
    data = dataset_of(config)
    world = build(config, data=data).world
    home = out / "nodes" / f"{member:05d}"
    train = world.train(member, 0)
    rows: NodeData | UnpreparedRows = NodeData(train, world.validation(member, 0))
    if agreed.expects.table is not None:
        columns = member_columns(data, train)
        rows = unprepared_table(of_arrays(columns, f"member {member}"), agreed.expects)
    return Node(agreed, rows, _kept(home / "key"), f"member-{member:05d}", home)


def member_columns(data: Dataset, own: ClientData) -> dict[str, Array]:
    """A member's rows as they stand in the config's own file."""
    x = data.train.x
    same = len(own.pool.x) == len(x) and torch.equal(own.pool.x[own.rows].to(x.dtype), x[own.rows])
    if not same or not torch.equal(own.labels, data.train.y[own.rows]):
        raise UserError("world: it changes rows or labels, and members of a federation prepare "
                        "rows as they stand in a file; take another world")  # fmt: skip
    return as_written(data, own.rows)


def _kept(path: Path) -> Key:
    return read_key(path) if path.exists() else new_key(path)


# ---- shoal flower new ----
TOP, INSIDE = ("pyproject.toml", "README.md"), ("server_app.py", "client_app.py", "task.py")


def write_app(
    folder: Path,
    config: Config,
    expects: DataForm | None = None,
    publisher: str = "shoal",
    rules: Rules | None = None,
    secure: Secure | None = None,
) -> Path:
    """The app directory; nothing is written if anything is wrong."""
    if folder.exists() and any(folder.iterdir()):
        raise UserError(f"{folder} is not empty; give a directory that does not exist yet")
    if config.problem is not None:
        raise UserError("a problem has no data that nodes could bring; give a config with a model")
    name = re.sub(r"[^a-z0-9]+", "-", folder.resolve().name.lower()).strip("-") or "federation"
    package = name.replace("-", "_")
    today = config.model_copy(update={"format": 2})
    form, code = expects or expected_of(config), agreed_code(config)
    agreed = Agreement(form, today, secure=secure, bounds=Bounds(), code=code)
    plan = agreed.plan()  # every check that can fail fails here
    agreed = replace(agreed, frozen=getattr(plan.settings.task, "frozen_digest", ""))
    if secure is None:  # a sum hides how long each upload is
        limits = Bounds().filled(plan.initial.theta, None)
        norm = float(f"{limits.norm:.4g}")
        agreed = replace(agreed, bounds=Bounds(norm=norm, payload=float(f"{limits.payload:.4g}")))
    inside = folder / package
    inside.mkdir(parents=True)
    settings = {**(rules or Rules()).plain(), "out": ""}
    filled = {
        "name": name,
        "package": package,
        "method": plan.settings.method.name,
        "publisher": publisher,
        "rules": "\n".join(f"{key} = {_toml(value)}" for key, value in settings.items()),
    }
    write_text(inside / "__init__.py", f'"""{name}."""\n', shared=True)
    for place, names in ((folder, TOP), (inside, INSIDE)):
        for file in names:
            text = asset("shoal.flower", f"{file}.txt").format(**filled)
            write_text(place / file, text, shared=True)
    agreed.write(inside / "federation.yaml", shared=True)
    write_text(inside / "simulation.yaml", dump_yaml(config.complete()), shared=True)
    return inside / "federation.yaml"


def expected_of(config: Config) -> DataForm:
    """The form of the config's own data; its world is tried too, since ``up`` will need it."""
    data = dataset_of(config)
    build(config, data=data)
    return DataForm.of_table(data) or DataForm.of(data)


def _toml(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return f'"{value}"' if isinstance(value, str) else str(value)


def agreement_of(folder: Path) -> Path:
    """The ``federation.yaml`` of an app directory."""
    found = sorted(folder.glob("*/federation.yaml"))
    if len(found) != 1:
        raise UserError(f"{folder} is no app of shoal flower new: it has {len(found)} "
                        "federation.yaml one folder down")  # fmt: skip
    return found[0]
