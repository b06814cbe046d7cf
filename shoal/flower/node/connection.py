"""The node's process: one connection to the SuperLink, one member, no code from anybody else.

Flower's own SuperNode starts a new process for every message and runs in it the app that the
server sent. This loop uses the same authenticated connection, but it answers with the shoal that
is installed here: data is read once, and nothing that comes over the wire is ever executed.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import httpx
from flwr.app import Message
from flwr.supercore.inflatable.inflatable_object import (
    get_all_nested_objects,
    get_object_tree,
    iterate_object_tree,
    no_object_id_recompute,
)
from flwr.supercore.inflatable.inflatable_utils import (
    ObjectPullError,
    inflate_object_from_contents,
    pull_objects,
    push_objects,
)
from flwr.supercore.run import RunNotRunningException
from flwr.supercore.task_identity import TaskIdentity
from flwr.supernode.fleet_http_connection import http_request_response

from shoal.flower.messages import from_flower, to_flower
from shoal.flower.node.node import Node
from shoal.flower.wire import WireError

SOON_SECONDS = 0.05  # seconds
UNFINISHED_SECONDS = 15.0  # seconds for the rest of a message that has begun to arrive
SINCE, REFUSED_SECONDS, PAUSE_SECONDS = "SHOAL_NODE_SINCE", 90.0, 2.0
Connection = tuple[Any, ...]


def serve(
    node: Node,
    superlink: str,
    *,
    authority: Path | None,
    insecure: bool,
    poll: float,
    say: Callable[[str], None],
) -> None:
    """Answer the server until this process is stopped."""
    # a node that is asked to end says goodbye, so that it can come back at once
    signal.signal(signal.SIGTERM, lambda *args: sys.exit(0))
    private = node.key.private
    keys = None if insecure else (private, private.public_key())
    trusted = str(authority) if authority is not None else None
    with http_request_response(superlink, insecure, trusted, keys) as connection:
        TaskIdentity.node_id = connection[0]
        os.environ.pop(SINCE, None)  # a later refusal has its own patience
        say(f"{node.name} is connected to {superlink} as node {connection[0]}")
        pause = poll
        while True:
            # work comes in bursts: look again soon after an answer, and less and less often then
            pause = SOON_SECONDS if _worked(node, connection, say) else min(2 * pause, poll)
            time.sleep(pause)


def _worked(node: Node, connection: Connection, say: Callable[[str], None]) -> bool:
    """Whether there was work. A SuperLink that is gone comes back, and so does this member."""
    try:
        return answer_one(node, connection, say)
    except httpx.HTTPError as error:
        say(f"the SuperLink did not answer properly ({error}); trying again")
        return False


def try_again(say: Callable[[str], None]) -> None:
    """Start this very program anew after a refusal, for a while.

    Flower lets a node in only once it has given up on an earlier process with the same key, which
    takes a minute if that one was killed. Flower also ends the process that was refused, so a new
    one is needed.
    """
    began = float(os.environ.setdefault(SINCE, str(time.time())))
    if time.time() - began > REFUSED_SECONDS:
        return
    say("not let in: the key is not registered, or the SuperLink still waits for an earlier "
        "process of this member; trying again")  # fmt: skip
    time.sleep(PAUSE_SECONDS)
    sys.stdout.flush()
    os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])


def answer_one(node: Node, connection: Connection, say: Callable[[str], None]) -> bool:
    """Take one message and answer it; False if there was none."""
    _, receive, send, _, _, pull, push, confirm = connection
    try:
        received = receive()
        if received is None:
            return False
        head, tree = received
        run, identity = head.metadata.run_id, head.metadata.message_id
        message = _pulled(partial(pull, run), identity, tree, node.limit)
        confirm(run, identity)
        reply = _reply(node, message)
        _send(reply, send, partial(push, run))
        say(f"answered a {head.metadata.message_type} message of round {head.metadata.group_id}")
    except RunNotRunningException:
        say("a message of a run that is over; ignored")
    except ObjectPullError:
        say("a message whose sender went away before it was whole; ignored")
    except WireError as error:
        say(f"a message that is no order: {error}")
    return True


def _pulled(pull: Callable[[str], bytes], identity: str, tree: Any, limit: int) -> Message:
    """The message, as long as it is not longer than an order can be."""
    total = 0

    def counted(object_id: str) -> bytes:
        nonlocal total
        content = pull(object_id)
        total += len(content)
        if total > limit:
            raise WireError(f"more than {limit} bytes")
        return content

    wanted = [t.object_id for t in iterate_object_tree(tree)]
    contents = pull_objects(wanted, counted, max_time=UNFINISHED_SECONDS)
    message = inflate_object_from_contents(identity, contents)
    if not isinstance(message, Message):
        raise WireError("no message")
    message.metadata.__dict__["_message_id"] = identity
    return message


def _reply(node: Node, message: Message) -> Message:
    TaskIdentity.run_id = message.metadata.run_id
    TaskIdentity.task_id = TaskIdentity._task_id or 1  # a node has one task: this loop
    frame, signature = node.reply(from_flower(message.content)[0])
    return Message(to_flower(frame, signature), reply_to=message)


def _send(reply: Message, send: Callable[..., Any], push: Callable[..., None]) -> None:
    reply.metadata.__dict__["_message_id"] = reply.object_id
    with no_object_id_recompute():
        wanted, session = send(reply, get_object_tree(reply), 0.0)
        push_objects(
            get_all_nested_objects(reply), partial(push, session), object_ids_to_push=wanted
        )
