"""Serving the page from the command line."""

from __future__ import annotations

import secrets
import socket
from collections.abc import Callable
from pathlib import Path

import uvicorn

from shoal.errors import UserError
from shoal.watch.app import make_app

LOCAL = ("127.0.0.1", "localhost", "::1")


def serve(root: Path, host: str, port: int, say: Callable[[str], None]) -> None:
    """Serve until interrupted; ``port`` 0 takes a free one."""
    token = None if host in LOCAL else secrets.token_urlsafe(24)
    app = make_app(root, token)
    listening = bound(host, port)
    shown = socket.gethostname() if host in ("0.0.0.0", "::") else host
    shown = f"[{shown}]" if ":" in shown else shown
    address = f"http://{shown}:{listening.getsockname()[1]}/"
    say(f"watching {root}: {address}" + (f"?token={token}" if token else ""))
    if token:
        say("anybody with this address can read these runs; the connection is not encrypted")
    config = uvicorn.Config(
        app,
        log_level="warning",
        access_log=False,  # a token would stand in it
        server_header=False,
        timeout_graceful_shutdown=1,  # event streams never end by themselves
    )
    uvicorn.Server(config).run(sockets=[listening])


def bound(host: str, port: int) -> socket.socket:
    """A socket that listens there, or one sentence why it cannot."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listening = socket.socket(family, socket.SOCK_STREAM)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((host, port))
        listening.listen()  # whoever comes before the server is ready waits
    except (OSError, OverflowError) as error:
        listening.close()
        raise UserError(
            f"{host}:{port} cannot be listened on ({error}); choose another with --host or --port"
        ) from None
    return listening
