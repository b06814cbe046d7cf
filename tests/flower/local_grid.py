"""A grid inside this process: messages go straight to nodes, so that a test takes milliseconds."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from flwr.app import Message
from flwr.proto.node_pb2 import NodeInfo
from flwr.serverapp import Grid
from flwr.supercore.run import Run
from flwr.supercore.task_identity import TaskIdentity

from shoal.config import from_mapping
from shoal.core.types import ClientData, Pool
from shoal.engines import api
from shoal.flower.agreement import Agreement, Rules
from shoal.flower.data_form import DataForm
from shoal.flower.keys import Key, new_key
from shoal.flower.messages import OrderMessage, TrainReply, from_flower, to_flower
from shoal.flower.node.node import Node
from shoal.flower.node.own_data import NodeData
from shoal.flower.server.members import MemberRegistry
from shoal.flower.server.server import Server

Twist = Callable[[bytes, bytes], tuple[bytes, bytes]]
CLASSES, FEATURES = 3, 6


class LocalGrid(Grid):
    """Nodes by id. ``down`` ones get no message, ``mute`` ones answer when they are asked to."""

    def __init__(self) -> None:
        TaskIdentity.run_id, TaskIdentity.task_id, TaskIdentity.node_id = 1, 1, 1
        self.nodes: dict[int, TwistedNode] = {}
        self.down: set[int] = set()
        self.mute: set[int] = set()
        self.twists: dict[int, Twist] = {}
        self.held: list[tuple[str, Message]] = []
        self.replies: dict[str, Message] = {}
        self.pushed = 0
        self.looks = 0

    def set_run(self, run: Run) -> None: ...

    @property
    def run(self) -> Run:
        raise NotImplementedError

    def create_message(self, *args: Any, **kwargs: Any) -> Message:
        raise NotImplementedError

    def get_node_ids(self) -> Iterable[int]:
        return [node for node in self.nodes if node not in self.down]

    def get_nodes(self) -> Iterable[NodeInfo]:
        self.looks += 1
        return [
            NodeInfo(node_id=n, public_key=self.nodes[n].key.public, status="online")
            for n in self.get_node_ids()
        ]

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        ids = []
        for message in messages:
            self.pushed += 1
            identity = f"m{self.pushed}"
            ids.append(identity)
            message.metadata.__dict__["_message_id"] = identity
            if message.metadata.dst_node_id in self.mute:
                self.held.append((identity, message))
            else:
                self._answer(identity, message)
        return ids

    def release(self) -> None:
        """What mute nodes had to say comes now, late."""
        for identity, message in self.held:
            self._answer(identity, message)
        self.held.clear()

    def _answer(self, identity: str, message: Message) -> None:
        node = message.metadata.dst_node_id
        if node in self.down:
            return
        frame, signature = self.nodes[node].reply(from_flower(message.content)[0])
        if node in self.twists:
            frame, signature = self.twists[node](frame, signature)
        reply = Message(to_flower(frame, signature), reply_to=message)
        reply.metadata.__dict__["_src_node_id"] = node
        self.replies[identity] = reply

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        return [self.replies.pop(i) for i in list(message_ids) if i in self.replies]

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        return self.pull_messages(list(self.push_messages(messages)))


FORM = DataForm((FEATURES,), CLASSES)


def agreement(method: Any, form: DataForm = FORM, **more: Any) -> Agreement:
    config = {
        "model": {"name": "mlp", "hidden": 5},
        "local": {"epochs": 2, "batch": 4, "lr": 0.1},
        "method": method,
        "seed": 3,
        **more,
    }
    return Agreement(form, from_mapping(config))


def rows_of(member: int, rows: int = 12, form: DataForm = FORM) -> ClientData:
    """A member's data: the same wherever it is made."""
    draw = np.random.default_rng(member)
    if form.vocabulary:
        x = torch.from_numpy(draw.integers(0, form.vocabulary, (rows, *form.shape)))
    else:
        x = torch.from_numpy(draw.normal(size=(rows, *form.shape)).astype(np.float32))
    shape = (rows, *form.answer)
    if form.target == "number":
        y = torch.from_numpy(draw.normal(size=shape).astype(np.float32))
    else:
        most = 2 if form.target == "multi_label" else form.classes or 2
        y = torch.from_numpy(draw.integers(0, most, shape)).to(form.answers_kind)
    return ClientData(Pool(x, y), torch.arange(rows), y, float(rows))


def some_keys(folder: Path, count: int) -> list[Key]:
    return [new_key(folder / f"key-{i}") for i in range(count)]


@dataclass
class TwistedNode(Node):
    """A node whose uploads a test may change, after they were clipped, noised and masked."""

    twist: Callable[[TrainReply], TrainReply] | None = None

    def _train(self, frame: OrderMessage, order: api.Order, ended: int) -> TrainReply:
        done = super()._train(frame, order, ended)
        return done if self.twist is None else self.twist(done)


def add_nodes(
    grid: LocalGrid, what: Agreement, folder: Path, members: Sequence[int], keys: list[Key]
) -> None:
    """Nodes ``100 + member``, with names and places in the roster."""
    roster = MemberRegistry(folder / "server" / "roster.json")
    for member in members:
        own = rows_of(member, form=what.expects), rows_of(member, 5, what.expects)
        data = NodeData(*own)
        home = folder / f"home-{member}"
        grid.nodes[100 + member] = TwistedNode(what, data, keys[member], f"node-{member}", home)
        roster.add(f"node-{member}", keys[member].public)


def serve(grid: LocalGrid, what: Agreement, folder: Path, said: list[str], **rules: Any) -> Server:
    given = {"deadline": 0.3, "poll": 0.05, "rollback": 0.0, **rules}
    return Server(
        grid, what, Rules(**given), folder / "server", said.append, sleep=lambda seconds: None
    )


class Small:
    """A federation of five, or so many."""

    def __init__(
        self,
        folder: Path,
        method: Any = "fedavg",
        members: int = 5,
        bounds: Any = None,
        **more: Any,
    ) -> None:
        self.folder, self.said = folder, list[str]()
        what = agreement(method, **more)
        self.what = what if bounds is None else replace(what, bounds=bounds)
        self.grid, self.keys = LocalGrid(), some_keys(folder, 8)
        add_nodes(self.grid, self.what, folder, range(members), self.keys)

    def server(self, **rules: Any) -> Server:
        given = {"num_server_rounds": 3, "start_members": 3, **rules}
        return serve(self.grid, self.what, self.folder, self.said, **given)

    def after(self, server: Server, round: int, action: Callable[[], object]) -> None:
        """Do something between two rounds."""
        write = server.record.write

        def noted(record: Any, *rest: Any) -> str:
            line = write(record, *rest)
            if record["round"] == round:
                action()
            return line

        server.record.write = noted  # type: ignore[method-assign]

    def events(self, kind: str) -> list[str]:
        lines = (self.folder / "server" / "events.jsonl").read_text().splitlines()
        return [e["text"] for e in map(json.loads, lines) if e["event"] == kind]

    def members(self) -> dict[str, Any]:
        found = json.loads((self.folder / "server" / "members.json").read_text())
        return {entry["name"]: entry for entry in found.values()}
