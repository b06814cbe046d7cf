"""Replies from a grid, with a bound on their size that holds before they are in memory."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import httpx
from flwr.app import Message, RecordDict
from flwr.serverapp import Grid

from shoal.errors import shown

PATIENCE = 10.0  # seconds for an upload that has begun to arrive
PIECES, PIECE = 64, 1 << 20  # objects of a reply: a few, and one of Flower's chunks a megabyte
GONE = (3, 4, 5)  # Flower's codes for messages and nodes that are unavailable


@dataclass(frozen=True)
class Reply:
    """A message that came back, or why there is none."""

    to: str  # id of the message it replies to
    node: int = 0
    content: RecordDict | None = None
    error: str = ""
    gone: bool = False  # the node, not its answer, is what is missing


class TooLongError(Exception):
    """A reply of more bytes than are accepted."""


def pull_bounded(grid: Grid, ids: Sequence[str], limit: int) -> Iterator[Reply]:
    """The replies that are there. From a deployed grid each is read piece by piece, and given up
    as soon as it is longer than ``limit``."""
    if not ids:
        return
    client = getattr(grid, "_runtime_client", None)
    if client is None:
        for message in grid.pull_messages(ids):
            yield _reply(message)
        return
    from flwr.proto.runtime_pb2 import PullAppMessagesRequest
    from flwr.supercore.inflatable.inflatable_utils import ObjectPullError

    found = client.PullMessages(PullAppMessagesRequest(message_ids=list(ids)))
    for head, tree in zip(found.messages_list, found.message_object_trees, strict=True):
        to = head.metadata.reply_to_message_id
        try:
            yield _reply(_pulled(grid, client, head.metadata.message_id, tree, limit))
        except httpx.HTTPError:
            raise  # the SuperLink's, no member's
        except TooLongError as error:
            yield Reply(to, head.metadata.src_node_id, error=str(error))
        except ObjectPullError:
            yield Reply(to, head.metadata.src_node_id, error="its upload was broken off", gone=True)
        except Exception as error:  # pieces that are no message, of whatever kind
            why = f"pieces that are no message ({type(error).__name__})"
            yield Reply(to, head.metadata.src_node_id, error=why)


def _pulled(grid: Grid, client: object, identity: str, tree: object, limit: int) -> Message:
    """One message, object by object."""
    from flwr.proto.message_pb2 import ConfirmMessageReceivedRequest
    from flwr.supercore.inflatable.inflatable_object import iterate_object_tree
    from flwr.supercore.inflatable.inflatable_protobuf_utils import make_pull_object_fn_protobuf
    from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents

    node, run = grid.node, grid.run.run_id  # type: ignore[attr-defined]
    pull = make_pull_object_fn_protobuf(client.PullObject, node, run)  # type: ignore[attr-defined]
    contents: dict[str, bytes] = {}
    total = 0
    try:
        for count, item in enumerate(iterate_object_tree(tree), 1):  # type: ignore[arg-type]
            if count > PIECES + limit // PIECE:
                raise TooLongError(f"more than {PIECES + limit // PIECE} pieces")
            contents[item.object_id] = _object(pull, item.object_id)
            total += len(contents[item.object_id])
            if total > limit + (64 << 10):  # Flower's own headers
                raise TooLongError(f"more than the {limit} bytes that are accepted")
    finally:
        confirm = ConfirmMessageReceivedRequest(node=node, run_id=run, message_object_id=identity)
        client.ConfirmMessageReceived(confirm)  # type: ignore[attr-defined]
    message = inflate_object_from_contents(identity, contents)
    if not isinstance(message, Message):
        raise TypeError("another object than a message")
    message.metadata.__dict__["_message_id"] = identity
    return message


def _object(pull: Callable[[str], bytes], identity: str) -> bytes:
    """One object; a node may still be sending it, but not for long."""
    from flwr.supercore.inflatable.inflatable_utils import ObjectPullError, ObjectUnavailableError

    until = time.monotonic() + PATIENCE
    while True:
        try:
            return pull(identity)
        except ObjectUnavailableError:
            if time.monotonic() > until:
                raise ObjectPullError(identity, "it never came") from None
            time.sleep(0.05)


def _reply(message: Message) -> Reply:
    to = message.metadata.reply_to_message_id
    if message.has_error():
        gone = message.error.code in GONE
        return Reply(to, message.metadata.src_node_id, error=_sentence(message), gone=gone)
    return Reply(to, message.metadata.src_node_id, message.content)


def _sentence(message: Message) -> str:
    error = message.error
    return f"{shown(error.reason, 200) or 'no reply'} (Flower error {error.code})"
