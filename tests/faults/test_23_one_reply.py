"""23: whatever one member replies, it is refused by name with its reason, and the others go on."""

from __future__ import annotations

import json
import random
import struct
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

pytest.importorskip("flwr")

from flower.local_grid import LocalGrid, Small, add_nodes, agreement, rows_of, serve, some_keys

from shoal import catalog
from shoal.core import tree
from shoal.core.errors import UserError
from shoal.core.types import Job
from shoal.engines.api import Member
from shoal.engines.loop import train_one
from shoal.flower import masking, messages, wire
from shoal.flower.keys import Key
from shoal.flower.masking import Secure
from shoal.flower.messages import (
    Frame,
    MaskKeys,
    MemberInfo,
    QuestionReply,
    SealedShares,
    TrainReply,
    UnmaskReply,
)
from shoal.flower.node.node import Node
from shoal.flower.node.own_data import NodeData
from shoal.flower.operations.supervisor import status_table
from shoal.flower.operations.up import FederationFolder, UpOptions
from shoal.flower.server.engine import GridEngine
from shoal.flower.server.sessions import LiveWorld
from shoal.flower.wire import WireError
from shoal.rounds.orders import make_order
from shoal.rounds.state import Federation, Round
from shoal.rounds.uploads import Guard, UploadSums

EVIL, ROUNDS = 3, 3
Twist = Callable[[bytes, bytes], tuple[bytes, bytes]]
Header = dict[str, Any]


def apart(blob: bytes) -> tuple[Header, bytes]:
    """Header and tensors of a frame."""
    start = len(wire.MAGIC) + 4
    (length,) = struct.unpack("<I", blob[len(wire.MAGIC) : start])
    return json.loads(blob[start : start + length]), blob[start + length :]


def together(header: Header | bytes, body: bytes) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return wire.MAGIC + struct.pack("<I", len(text)) + text + body


def signed(key: Key, kind: str, change: Callable[[Header, bytes], bytes]) -> Twist:
    """Replies of one kind are changed, and signed by the member itself: it is the liar."""

    def twist(blob: bytes, signature: bytes) -> tuple[bytes, bytes]:
        header, body = apart(blob)
        if header["kind"] != kind:
            return blob, signature
        changed = change(header, body)
        return changed, key.sign(changed)

    return twist


def value(name: str, new: Any) -> Callable[[Header, bytes], bytes]:
    def change(header: Header, body: bytes) -> bytes:
        header["values"][name] = new
        return together(header, body)

    return change


def entry(name: str, new: Any) -> Callable[[Header, bytes], bytes]:
    """An entry of the header itself."""

    def change(header: Header, body: bytes) -> bytes:
        header[name] = new
        return together(header, body)

    return change


def text(old: str, new: str) -> Callable[[Header, bytes], bytes]:
    """The header's JSON with a text in place of another, which no encoder would write."""

    def change(header: Header, body: bytes) -> bytes:
        whole = json.dumps(header)
        assert old in whole
        return together(whole.replace(old, new, 1).encode(), body)

    return change


def no_payloads(header: Header, body: bytes) -> bytes:
    header["trees"]["payloads"] = None
    return together(header, body)


def empty_but_huge(header: Header, body: bytes) -> bytes:
    """The statistics of a model that has none: zero entries, of a shape no machine can hold."""
    empty = [i for i, (_, shape) in enumerate(header["tensors"]) if 0 in shape]
    header["tensors"][empty[0]][1] = [0, *[(1 << 40) - 1] * 7]
    return together(header, body)


BIG = 1 << 40
DONE: dict[str, Callable[[Header, bytes], bytes]] = {
    "empty but huge": empty_but_huge,
    "payloads: null": no_payloads,
    "payloads: a tensor": lambda h, b: together(h | {"trees": h["trees"] | {"payloads": 2}}, b),
    **{
        f"{name} = {new!r}": value(name, new)
        for name in ("steps", "samples", "epochs")
        for new in (BIG, 1 << 62, -1, 0, True, 2.0, None, "4", [4])
    },
    "count 0": value("count", 0),
    "count true": value("count", True),
    "count of others": value("count", 1e12),
    "count NaN": text('"count": 12.0', '"count": NaN'),
    "count 1e999": text('"count": 12.0', '"count": 1e999'),
    "steps of 5,000 digits": text('"steps": ', '"steps": ' + "9" * 5000),
    "accuracy 7": value("accuracy", 7.0),
    "accuracy -0.5": value("accuracy", -0.5),
    "accuracy true": value("accuracy", True),
    "accuracy null": value("accuracy", None),
    "loss 1e200": value("loss", 1e200),
    "loss a list": value("loss", [1.0]),
    "another member": value("member", "3"),
    "a megabyte": value("nonce", "x" * 900_000),
    "kind": entry("kind", "Hello"),
    "kind of half a character": entry("kind", "\ud800"),
    "values": entry("values", []),
    "tensors": entry("tensors", {"0": ["f32", [1]]}),
    "tensors of names": entry("tensors", [["f32", ["1"]], ["f32", [0]]]),
    "trees": entry("trees", {"delta": 0, "stats": 1, "payloads": {"of": "os:system", "items": []}}),
    "deep": text('"payloads": ', '"payloads": ' + "[" * 50_000),
    "deep, and closed": text('"payloads": [', '"payloads": [' + "[" * 900 + "]" * 900 + ","),
    "a name twice": text('"steps": ', '"steps": 1, "steps": '),
}


def test_uploads(tmp_path: Path) -> None:
    """In every round another lie: in the log, in the counters, in rounds.jsonl, in the status."""
    small, lies = Small(tmp_path), iter(DONE.values())
    evil, rounds = f"node-{EVIL}", len(DONE)
    small.grid.twists[100 + EVIL] = signed(
        small.keys[EVIL], "Done", lambda header, body: next(lies)(header, body)
    )
    server = small.server(num_server_rounds=rounds)
    server.play()
    lines = (small.folder / "server" / "rounds.jsonl").read_text().splitlines()
    for case, line in zip(DONE, lines, strict=True):
        record = json.loads(line)
        assert record["accepted"] == [0, 1, 2, 4], case
        assert [r["client"] for r in record["rejected"]] == [EVIL], case
        assert 5 < len(record["rejected"][0]["reason"]) < 400, case
    counts = {name: entry["counts"] for name, entry in small.members().items()}
    assert counts.pop(evil) == {"arrivals": 1, "refused": rounds}
    assert all(c == {"accepted": rounds, "arrivals": 1} for c in counts.values())
    told = small.events("refused")
    assert len(told) == rounds and all(f"of {evil}: " in line for line in told)
    (shown,) = [line for line in status(small) if "last refused: " in line]
    assert "a header that is no JSON" in shown
    assert server.federation.models[0].theta.isfinite().all()


@pytest.mark.parametrize("case", ["empty but huge", "payloads: null", "steps = 1099511627776"])
def test_upload(tmp_path: Path, case: str) -> None:
    small = Small(tmp_path)
    small.grid.twists[100 + EVIL] = signed(small.keys[EVIL], "Done", DONE[case])
    small.server().play()
    assert small.members()[f"node-{EVIL}"]["refused_rate"] == 1.0
    assert small.members()["node-0"]["counts"]["accepted"] == ROUNDS


def status(small: Small) -> list[str]:
    place = FederationFolder(small.folder / "place")
    UpOptions("app", 5, "127.0.0.1", 1, False, {}).write(place)
    place.run.symlink_to((small.folder / "server").resolve())
    return list(status_table(place))


# ---- who somebody says it is ----
CARDS: dict[str, Callable[[MemberInfo], MemberInfo]] = {
    "10^13 rows": lambda c: replace(c, rows=10**13),
    "no rows": lambda c: replace(c, rows=0),
    "-1 rows": lambda c: replace(c, rows=-1),
    "2^40 rows to validate": lambda c: replace(c, validation=BIG),
    "-1 rows to validate": lambda c: replace(c, validation=-1),
    "a name of a megabyte": lambda c: replace(c, name="n" * 900_000),
    "a name that clears the screen": lambda c: replace(c, name="node-3\x1b[2J"),
    "a name that is none": lambda c: replace(c, name=""),
    "another's key": lambda c: replace(c, public="key"),
}


@pytest.mark.parametrize("case", CARDS)
@pytest.mark.parametrize("insecure", [False, True])
def test_card(tmp_path: Path, case: str, insecure: bool) -> None:
    small = Small(tmp_path)
    if insecure:
        (tmp_path / "server" / "roster.json").unlink()
    key = small.keys[EVIL]

    def lie(blob: bytes, signature: bytes) -> tuple[bytes, bytes]:
        frame = messages.unpack(blob, 1 << 30)
        if not isinstance(frame, MemberInfo):
            return blob, signature
        lied = messages.pack(CARDS[case](frame))
        return lied, key.sign(lied)

    small.grid.twists[100 + EVIL] = lie
    server = small.server(insecure=insecure, start_members=4)
    server.play()
    accepted = {n: e["counts"].get("accepted", 0) for n, e in small.members().items()}
    assert sorted(accepted.values(), reverse=True)[:4] == [3, 3, 3, 3]
    assert sum(accepted.values()) == 12 and max(server.world.sizes.values()) == 12
    assert small.events("refused") and len(max(small.said, key=len)) < 500
    assert all(line.isprintable() for line in small.said)


def test_half_a_character_in_a_card(tmp_path: Path) -> None:
    """Text without bytes: the key of a card is encoded where nobody vouches for it."""
    small = Small(tmp_path)
    (tmp_path / "server" / "roster.json").unlink()
    twist = signed(small.keys[EVIL], "Card", value("public", "\ud800"))
    small.grid.twists[100 + EVIL] = twist
    server = small.server(insecure=True, start_members=4)
    server.play()
    assert server.federation.round == 3 and small.events("refused")


def test_members_own_words_are_written_out(tmp_path: Path) -> None:
    """A reason is a member's text: it moves no cursor and fills no log."""
    small = Small(tmp_path)
    node = small.grid.nodes[100 + EVIL]

    def sorry(done: TrainReply) -> Any:
        return messages.Refusal(done.nonce, "\x1b[2J\u202e\n" * 200)

    node.twist = sorry
    small.server().play()
    lines = [*small.events("refused"), *status(small)]
    assert any("\\x1b[2J\\u202e\\n" in line for line in lines)
    assert all(line.isprintable() and len(line) < 500 for line in [*lines, *small.said])


# ---- bounds ----
def scaled(factor: float) -> Callable[[TrainReply], TrainReply]:
    return lambda done: replace(done, delta=done.delta * factor)


@pytest.mark.parametrize("members", [2, 3])
def test_length_is_bounded_where_there_are_few(tmp_path: Path, members: int) -> None:
    small = Small(tmp_path, members=members)
    small.grid.nodes[101].twist = scaled(1000.0)
    server = small.server(start_members=members)
    server.play()
    assert server.federation.round == 3
    assert all("node-1" in t and "bounds.norm" in t for t in small.events("refused"))
    assert small.members()["node-1"]["refused_rate"] == 1.0


def test_bound_of_the_agreement_is_the_one(tmp_path: Path) -> None:
    """The same uploads, and a bound that lets none or all of them by."""
    from shoal.flower.agreement import Bounds

    for norm, accepted in ((1e-6, 0), (1e6, 3)):
        small = Small(tmp_path / f"{norm}", bounds=Bounds(norm=norm), members=2)
        server = small.server(start_members=2)
        with suppress(UserError):  # nobody's upload is accepted
            server.play()
        assert small.members()["node-0"]["counts"].get("accepted", 0) == accepted


def test_noise_of_private_members_is_within_the_bound(tmp_path: Path) -> None:
    from shoal.flower.agreement import Bounds
    from shoal.flower.privacy import Privacy

    privacy, initial = Privacy(clip=1.0, noise=8.0, shared_by=2), torch.zeros(10_000)
    bound = Bounds().filled(initial, privacy).norm
    longest = max(
        float(torch.linalg.vector_norm(privacy.protected(initial + 1.0))) for _ in range(50)
    )
    assert 0.9 * bound < longest < bound


def test_payload_is_bounded(tmp_path: Path) -> None:
    small = Small(tmp_path, "scaffold", members=2)
    small.grid.nodes[101].twist = lambda d: replace(d, payloads=_times(d.payloads, 1e30))
    small.server(start_members=2).play()
    assert small.members()["node-1"]["refused_rate"] == 1.0
    assert all("bounds.payload" in t for t in small.events("refused"))


def test_payload_is_compared_with_others(tmp_path: Path) -> None:
    small = Small(tmp_path, "scaffold")
    small.grid.nodes[101].twist = lambda d: replace(d, payloads=_times(d.payloads, 1000.0))
    small.server().play()
    assert small.members()["node-1"]["refused_rate"] == 1.0
    assert all("times the median" in t for t in small.events("refused"))


def _times(payloads: Any, factor: float) -> Any:
    return tree.apply(lambda leaf: leaf * factor, payloads)


@pytest.mark.parametrize("method", ["scaffold", "fedgh", "fednova"])
@pytest.mark.parametrize("sent", [(), None, (torch.zeros(3),), torch.zeros(2)])
def test_form_of_a_payload_needs_no_majority(tmp_path: Path, method: str, sent: Any) -> None:
    """Of two members the first is the liar: of two forms, the lowest member's used to count."""
    small = Small(tmp_path, method, members=2)
    small.grid.nodes[100].twist = lambda d: replace(
        d, payloads=tuple(sent if p != () else () for p in d.payloads)
    )
    server = small.server(start_members=2)
    server.play()
    assert small.members()["node-0"]["refused_rate"] == 1.0
    assert small.members()["node-1"]["counts"]["accepted"] == 3


def test_agreement_says_its_bounds(tmp_path: Path) -> None:
    from shoal.config import from_mapping
    from shoal.flower.agreement import load_agreement
    from shoal.flower.apps import write_app
    from shoal.flower.data_form import DataForm

    config = from_mapping({"data": "digits", "model": {"name": "mlp", "hidden": 5}})
    path = write_app(tmp_path / "app", config, DataForm((64,), 10))
    agreed = load_agreement(path)
    assert agreed.bounds is not None and agreed.bounds.norm is not None
    initial = agreed.plan().initial.theta
    assert agreed.bounds.norm == pytest.approx(10 * float(initial.norm()), rel=1e-3)
    tighter = path.read_text().replace("bounds: {rows: 10000000", "bounds: {rows: 500")
    path.write_text(tighter)
    assert load_agreement(path).digest != agreed.digest
    for wrong in ("rows: 0", "rows: true", "rows: 1.5", "norm: -1", "norm: .nan", "length: 3"):
        path.write_text(tighter.split("bounds:")[0] + f"bounds: {{{wrong}}}\n")
        with pytest.raises(UserError, match="bounds"):
            load_agreement(path)


def test_member_with_too_many_rows_does_not_join(tmp_path: Path) -> None:
    from shoal.flower.agreement import Bounds

    with pytest.raises(UserError, match=r"12 rows, and bounds.rows of the agreement allows 11"):
        Small(tmp_path, bounds=Bounds(rows=11))


def test_largest_member_pads_nobody(tmp_path: Path) -> None:
    """Without batches, everybody's rows used to be padded to those of the largest member."""
    small = Small(tmp_path, local={"epochs": 1, "batch": None, "lr": 0.1}, members=3)
    twist = signed(small.keys[2], "Card", value("rows", 9_000_000))
    small.grid.twists[102] = twist
    seen: list[int] = []
    train = Node._train

    def noted(self: Node, frame: Any, order: Any, ended: int) -> TrainReply:
        seen.append(order.pad)
        return train(self, frame, order, ended)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Node, "_train", noted)
        small.server(num_server_rounds=1).play()
    assert len(seen) == 3 and max(seen) <= 12


# ---- votes ----
def test_one_member_does_not_take_a_model_back(tmp_path: Path) -> None:
    """It says that it judges with a hundred thousand times the rows of the others."""
    small = Small(tmp_path)
    key, told = small.keys[EVIL], iter([1.0, *[0.0] * 50])

    def cry(header: Header, body: bytes) -> bytes:
        header["values"]["accuracy"] = next(told)
        return together(header, body)

    boast = signed(key, "Card", value("validation", 500_000))
    wolf = signed(key, "Done", cry)
    small.grid.twists[100 + EVIL] = lambda b, s: wolf(*boast(b, s))
    server = small.server(num_server_rounds=5, rollback=0.5)
    server.play()
    assert server.federation.round == 5 and not small.events("rollback")
    assert small.members()[f"node-{EVIL}"]["counts"]["accepted"] == 5


SCORES: dict[str, Any] = {
    "nothing": None,
    "a tuple": (torch.ones(3),),
    "one number": torch.ones(()),
    "none": torch.zeros(0),
    "not a number": torch.full((3,), float("nan"), dtype=torch.float64),
    "too good": torch.tensor([7.0, 0.0, 5.0], dtype=torch.float64),
    "whole": torch.ones(3, dtype=torch.int64),
}


def answering(small: Small, member: int, make: Callable[[QuestionReply], Any]) -> None:
    key, node = small.keys[member], small.grid.nodes[100 + member]

    def twist(blob: bytes, signature: bytes) -> tuple[bytes, bytes]:
        frame = messages.unpack(blob, 1 << 30, node.types)
        if not isinstance(frame, QuestionReply):
            return blob, signature
        lied = messages.pack(replace(frame, answer=make(frame)))
        return lied, key.sign(lied)

    small.grid.twists[100 + member] = twist


@pytest.mark.parametrize("case", SCORES)
def test_score(tmp_path: Path, case: str) -> None:
    small = Small(tmp_path)
    answering(small, EVIL, lambda frame: SCORES[case])
    small.server().play()
    summary = json.loads((tmp_path / "server" / "summary.json").read_text())
    assert sorted(summary["accuracy_by_member"]) == ["0", "1", "2", "4"]
    assert [f"node-{EVIL}" in t for t in small.events("refused")] == [True]


@pytest.mark.parametrize("method", ["hypcluster", "fedagg"])
@pytest.mark.parametrize("answer", [None, (), torch.zeros(7), "nan", "bytes"])
def test_answer_to_a_question(tmp_path: Path, method: str, answer: Any) -> None:
    """A question needs everybody's answer; who gives none that can be used is asked no more."""
    small, lie = Small(tmp_path, method), answer
    if answer == "bytes":
        key = small.keys[0]
        small.grid.twists[100] = lambda b, s: (
            (b"\x00", key.sign(b"\x00")) if apart(b)[0]["kind"] == "Answer" else (b, s)
        )
    else:
        answering(small, 0, lambda f: f.answer * float("nan") if lie == "nan" else lie)  # type: ignore[arg-type]
    if answer == "nan":
        answering(small, 0, lambda f: _times(f.answer, float("nan")))
    server = small.server()
    server.play()
    assert server.federation.round == 3
    assert all("node-0" in t for t in small.events("refused"))
    assert any("node-0" in t and "counts as gone" in t for t in small.events("departure"))


# ---- secure sums ----
def flat(size: int) -> torch.Tensor:
    return torch.zeros(size, dtype=torch.uint8)


LIES: dict[str, Callable[[Frame], Frame]] = {
    "no key": lambda f: replace(f, mask=flat(100)) if isinstance(f, MaskKeys) else f,
    "key of floats": lambda f: replace(f, seal=torch.zeros(3)) if isinstance(f, MaskKeys) else f,
    "no shares": lambda f: replace(f, sealed=None) if isinstance(f, SealedShares) else f,
    "shares of floats": lambda f: (
        replace(f, sealed=(torch.zeros(2),) * 5) if isinstance(f, SealedShares) else f
    ),
    "nothing opened": lambda f: replace(f, shares=None) if isinstance(f, UnmaskReply) else f,
    "empty shares": lambda f: (
        replace(f, shares=(flat(0),) * 5) if isinstance(f, UnmaskReply) else f
    ),
    "upload in the clear": lambda f: (
        replace(f, delta=f.delta.float()) if isinstance(f, TrainReply) else f
    ),
}


@pytest.mark.parametrize("case", LIES)
def test_secure_sum(tmp_path: Path, case: str) -> None:
    what = replace(agreement("fedavg"), secure=Secure(3))
    grid, keys = LocalGrid(), some_keys(tmp_path, 5)
    add_nodes(grid, what, tmp_path, range(5), keys)

    def lie(blob: bytes, signature: bytes) -> tuple[bytes, bytes]:
        lied = messages.pack(LIES[case](messages.unpack(blob, 1 << 30)))
        return lied, keys[EVIL].sign(lied)

    grid.twists[100 + EVIL] = lie
    server = serve(grid, what, tmp_path, [], num_server_rounds=3, start_members=5)
    server.play()
    kept = json.loads((tmp_path / "server" / "members.json").read_text())
    assert server.federation.round == 3 and not server.log.counts[0]["refused"]
    assert kept[str(EVIL)]["counts"]["refused"] >= 3


def test_shares_that_are_any_bytes(tmp_path: Path) -> None:
    """Helpers' shares that do not fit together open no sum, and end nothing."""
    what = replace(agreement("fedavg"), secure=Secure(3))
    grid, keys = LocalGrid(), some_keys(tmp_path, 5)
    add_nodes(grid, what, tmp_path, range(5), keys)
    lies = 0

    def lie(blob: bytes, signature: bytes) -> tuple[bytes, bytes]:
        nonlocal lies
        frame = messages.unpack(blob, 1 << 30)
        if not isinstance(frame, UnmaskReply) or lies == 4:
            return blob, signature
        lies += 1
        lied = messages.pack(replace(frame, shares=(flat(lies),) * 5))
        return lied, keys[0].sign(lied)

    grid.twists[100] = lie
    server = serve(grid, what, tmp_path, [], num_server_rounds=2, start_members=5)
    server.play()
    assert server.federation.round == 2 and lies == 4


# ---- what Flower hands over ----
def test_pieces_that_are_no_message() -> None:
    """From a deployed grid replies come in pieces, which a member makes up as it likes."""
    from flwr.proto.message_pb2 import Message, Metadata, ObjectTree, PullObjectResponse
    from flwr.proto.runtime_pb2 import PullAppMessagesResponse

    from shoal.flower.server.transport import receive_bounded

    contents = {"a": b"", "b": b"Array\x00", "c": b"\xff" * 40, "d": b"Nothing {}\x00 x"}
    trees = [ObjectTree(object_id=name) for name in contents]
    many = [ObjectTree(object_id="a") for _ in range(100_000)]
    trees.append(ObjectTree(object_id="e", children=many))
    pulled: list[str] = []

    def pull(request: Any) -> Any:
        pulled.append(request.object_id)
        content = contents.get(request.object_id, b"")
        return PullObjectResponse(object_found=True, object_available=True, object_content=content)

    def head(name: str) -> Any:
        about = Metadata(message_id=name, reply_to_message_id=name, src_node_id=7)
        return Message(metadata=about)

    found = PullAppMessagesResponse(
        messages_list=[head(t.object_id) for t in trees], message_object_trees=trees
    )
    client = SimpleNamespace(
        PullMessages=lambda request: found,
        PullObject=pull,
        ConfirmMessageReceived=lambda request: None,
    )
    grid: Any = SimpleNamespace(_runtime_client=client, node=None, run=SimpleNamespace(run_id=1))
    replies = list(receive_bounded(grid, ["x"], 1 << 20))
    assert [r.to for r in replies] == ["a", "b", "c", "d", "e"]
    assert all(r.error and r.content is None and not r.gone for r in replies)
    assert len(pulled) < 200


# ---- any reply ----
@dataclass
class Heard:
    """An order, and honest uploads, as the server of a running federation has them."""

    engine: GridEngine
    guard: Guard
    order: Any
    done: dict[int, TrainReply]
    types: Any

    def judge(self, blob: bytes) -> bool:
        """Whether the server takes these bytes for member 3's upload; it must be able to use it."""
        try:
            frame = messages.unpack(blob, 1 << 20, self.types)
        except WireError:
            return False
        if not isinstance(frame, TrainReply) or frame.member != EVIL:
            return False  # as the post says
        done = {**self.done, EVIL: frame}
        reasons = self.engine.screen.uploads(self.order, done)
        assert set(reasons) <= {EVIL}, reasons  # nobody else is blamed
        method, model = self.order.program.method, self.order.model
        total = UploadSums(method, model.theta.numel(), model.stats.numel(), model.theta)
        kept = {client: frame for client, frame in done.items() if client not in reasons}
        found = self.engine._results(self.order, kept, 1)
        keep, norms, rejected = self.guard.screen(found, set(kept), model.theta.numel(), set())
        assert {one.client for one in rejected} <= {EVIL}, rejected
        total.add(found, keep, norms, False)
        assert total.uploads(model.stats).delta.isfinite().all() and total.steps < 1 << 40
        for index in range(len(method.parts)):
            total.payload(index)
        return EVIL in kept and not rejected


def heard(folder: Path, method: Any) -> tuple[Heard, bytes]:
    small, caught = Small(folder, method), []
    server = small.server(num_server_rounds=1)
    uploads = server.engine.screen.uploads

    def noted(order: Any, done: dict[int, TrainReply]) -> Any:
        caught.append((order, done))
        return uploads(order, done)

    server.engine.screen.uploads = noted  # type: ignore[method-assign]
    server.play()
    server.engine.screen.uploads = uploads  # type: ignore[method-assign]
    order, done = caught[-1]
    types = small.grid.nodes[100].types
    return Heard(server.engine, server.settings.guard, order, done, types), messages.pack(
        done[EVIL]
    )


NUMBERS = (0, -1, 1, True, False, None, 1.5, -2.5, BIG, 1 << 63, 10**400, 1e308, "", "x", [], {})


def other_header(draw: random.Random, header: Header, body: bytes) -> bytes:
    """One place of the header is something else, or one tensor has another type or shape."""
    place: Any = header
    for _ in range(draw.randrange(1, 6)):
        keys = list(place) if isinstance(place, dict) else list(range(len(place)))
        if not keys:
            break
        chosen = draw.choice(keys)
        if isinstance(place[chosen], dict | list) and place[chosen] and draw.random() < 0.7:
            place = place[chosen]
            continue
        if isinstance(place, dict) and draw.random() < 0.1:
            del place[chosen]
        else:
            place[chosen] = draw.choice(NUMBERS)
        break
    return together(header, body)


def other_bytes(draw: random.Random, blob: bytes) -> bytes:
    data = bytearray(blob)
    for _ in range(draw.randrange(1, 6)):
        data[draw.randrange(len(data))] = draw.randrange(256)
    return bytes(data[: draw.randrange(len(data))] if draw.random() < 0.1 else data)


@pytest.mark.parametrize("method", ["fedavg", "scaffold", "fedgh", "fednova", "feddyn", "flash"])
def test_any_upload(tmp_path: Path, method: str) -> None:
    """Two thousand changed replies a method: taken and used, or refused, and nothing else."""
    federation, blob = heard(tmp_path, method)
    draw, taken = random.Random(0), 0
    assert federation.judge(blob)
    for number in range(2000):
        changed = (
            other_bytes(draw, blob) if number % 2 else other_header(draw, *apart(blob))
        )  # fmt: skip
        taken += federation.judge(changed)
    assert 0 < taken < 1500  # a changed digit of a tensor is an upload like any other


def test_any_reply_of_a_running_federation(tmp_path: Path) -> None:
    """Every kind of reply of one member is changed somewhere, for thirty rounds with questions."""
    small, draw = Small(tmp_path, "fedagg"), random.Random(1)
    key = small.keys[EVIL]

    def twist(blob: bytes, signature: bytes) -> tuple[bytes, bytes]:
        if draw.random() < 0.3 or apart(blob)[0]["kind"] == "Card":
            return blob, signature
        changed = (
            other_header(draw, *apart(blob)) if draw.random() < 0.7 else other_bytes(draw, blob)
        )
        return changed, key.sign(changed)

    small.grid.twists[100 + EVIL] = twist
    server = small.server(num_server_rounds=15)
    server.play()
    assert server.federation.round == 15
    assert all(f"node-{EVIL}" in t for t in small.events("refused"))
    assert server.federation.models[0].theta.isfinite().all()


def test_server_knows_every_methods_form() -> None:
    """What the server plays itself has the form of what members send, for the whole catalog."""
    from shoal.flower.server.screening import PretendMember, form

    tried = 0
    for method in sorted(catalog.METHODS):
        what, world = agreement(method), LiveWorld(3)
        try:
            plan = what.plan(world)
        except UserError:  # not for this model
            continue
        settings = replace(plan.settings, world=world, clients_are_remote=True)
        moment = world.open(0, range(2), False)
        federation = Federation.fresh(settings, plan.initial, moment, settings.rates(moment)[0])
        order = make_order(Round(federation, settings, moment), 0, [Job(0), Job(1)])
        sent = train_one(order, Member(1, rows_of(1), rows_of(1, 5), None))
        real = form((sent.stats[0], tree.row(sent.payloads, 0)))
        assert form(PretendMember(what.expects).upload(order)) == real, method
        tried += 1
    assert tried > 0.8 * len(catalog.METHODS)


# ---- strategies of one's own ----
METRICS: dict[str, dict[str, Any]] = {
    "no weight": {"accuracy": 0.5},
    "weight 0": {"num-examples": 0, "accuracy": 0.5},
    "weight 2^40": {"num-examples": BIG, "accuracy": 0.5},
    "weight NaN": {"num-examples": float("nan"), "accuracy": 0.5},
    "accuracy NaN": {"num-examples": 4, "accuracy": float("nan")},
    "another metric": {"num-examples": 4, "f1": 0.5},
    "a list": {"num-examples": 4, "accuracy": [0.5, 0.5]},
}


@pytest.mark.parametrize("case", METRICS)
def test_guarded_evaluations(case: str) -> None:
    """Flower ends a run over metrics that are not alike; one reply of three is left out here."""
    from flwr.app import Message, MetricRecord, RecordDict
    from flwr.serverapp.strategy import FedAvg

    from shoal.flower import GuardedStrategy

    LocalGrid()  # a task for messages to belong to
    replies = []
    for node in range(3):
        told = METRICS[case] if node == 0 else {"num-examples": 4, "accuracy": 0.25}
        message = Message(RecordDict(), node, "evaluate")
        message.metadata.__dict__["_message_id"] = f"m{node}"
        replies.append(Message(RecordDict({"metrics": MetricRecord(told)}), reply_to=message))
        replies[-1].metadata.__dict__["_src_node_id"] = node
    guarded = GuardedStrategy(FedAvg())
    found = guarded.aggregate_evaluate(1, replies)
    assert found is not None and found["accuracy"] == 0.25 and guarded.refused == {0: 1}


# ---- members' machines ----
def test_a_message_does_not_end_a_member(tmp_path: Path) -> None:
    """An error of its own is told and survived: other members' keys and shares reach it too."""
    small = Small(tmp_path)
    node = small.grid.nodes[100]

    def broken(frame: Any) -> Any:
        raise KeyError("whatever")

    node._handle = broken  # type: ignore[method-assign]
    hello = messages.Introduction("n", small.what.digest, torch.zeros(1))
    reply = messages.unpack(node.reply(messages.pack(hello))[0], 1 << 20)
    assert isinstance(reply, messages.Refusal) and "KeyError" in reply.reason


def test_names_of_members_can_be_printed(tmp_path: Path) -> None:
    small = Small(tmp_path)
    first = small.grid.nodes[100]
    for name in ("", "x" * 65, "eve\x1b[2J", "\u202eeve"):
        with pytest.raises(UserError, match="--name"):
            Node(small.what, NodeData(*first.data), first.key, name, tmp_path / "home")


def test_masks_know_bytes_only() -> None:
    with pytest.raises(ValueError, match="no bytes"):
        masking.unpacked(torch.zeros(2, 2, dtype=torch.uint8))
