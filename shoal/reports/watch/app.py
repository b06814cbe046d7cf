"""The web application: access control, events, the page."""

from __future__ import annotations

import asyncio
import json
import secrets
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from http.cookies import CookieError, SimpleCookie
from pathlib import Path
from urllib.parse import parse_qs

import uvicorn
from starlette.applications import Starlette
from starlette.datastructures import Headers, MutableHeaders
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from shoal.core.errors import UserError
from shoal.core.files import asset, dump_json
from shoal.reports import html
from shoal.reports.watch.runs import FileStamps, NotShownError, Runs

# ---- door ----------------------------------------------------------------------------------------
# Who may come in: a token where others can reach the page, and no foreign names for this host.

COOKIE = "shoal_token"
HEADERS = {
    # nothing but our own files is loaded, and nothing is sent anywhere else
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-store",
}


class AccessControl:
    """Lets a request in when it may read runs, and puts safe headers on every answer.

    ``token``: must come in the URL once (``?token=``), then in a cookie; None asks for none.
    ``hosts``: names under which the page may be asked for; a web page elsewhere that points its
    own name at this machine is refused. None: any name (a token is then needed anyway).
    """

    def __init__(self, app: ASGIApp, token: str | None, hosts: frozenset[str] | None) -> None:
        self._app, self._token, self._hosts = app, token, hosts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        given = parse_qs(scope.get("query_string", b"").decode("latin-1")).get("token", [""])[0]

        async def safely(message: Message) -> None:
            if message["type"] == "http.response.start":
                out = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    out[name] = value
                if self._fits(given):
                    out["set-cookie"] = f"{COOKIE}={given}; HttpOnly; SameSite=Strict; Path=/"
            await send(message)

        refused = self._refused(headers, given)
        if refused is not None:
            await refused(scope, receive, safely)
            return
        await self._app(scope, receive, safely)

    def _refused(self, headers: Headers, given: str) -> PlainTextResponse | None:
        host = headers.get("host", "").rsplit(":", 1)[0].lower()
        if self._hosts is not None and host not in self._hosts:
            return PlainTextResponse("this page answers to its own address only\n", 400)
        if self._token is None or self._fits(given) or self._fits(_cookie(headers)):
            return None
        return PlainTextResponse("the address lacks its token; use the whole line printed\n", 401)

    def _fits(self, given: str) -> bool:
        if self._token is None or not given:
            return False
        return secrets.compare_digest(given.encode(), self._token.encode())


def _cookie(headers: Headers) -> str:
    try:
        found = SimpleCookie(headers.get("cookie", "")).get(COOKIE)
    except CookieError:
        return ""
    return found.value if found else ""


# ---- stream --------------------------------------------------------------------------------------
# Server-sent events: which runs changed.

EVERY = 0.5  # seconds between two looks at the folder
BEAT = 15.0  # seconds after which an idle connection hears something
Look = Callable[[], dict[str, FileStamps]]


async def _pause() -> None:
    await asyncio.sleep(EVERY)


async def changes(look: Look, pause: Callable[[], Awaitable[None]] = _pause) -> AsyncIterator[str]:
    """Events for an ``EventSource``: the names of runs that are new, changed or gone.

    The first event has no names: it says that the connection stands, so a page that lost its
    server knows that it should ask for everything again.
    """
    seen = await asyncio.to_thread(look)
    yield event([])
    idle = 0.0
    while True:
        await pause()
        now = await asyncio.to_thread(look)
        names = [n for n in {**seen, **now} if seen.get(n) != now.get(n)]
        seen, idle = now, idle + EVERY
        if names:
            yield event(names)
        elif idle >= BEAT:
            yield ": still here\n\n"
        else:
            continue
        idle = 0.0


def event(names: list[str]) -> str:
    """JSON has no raw line breaks, so a name with one cannot end the event early.

    >>> event(["a\\nb"])
    'data: {"changed": ["a\\\\nb"]}\\n\\n'
    """
    return f"data: {json.dumps({'changed': names})}\n\n"


# ---- app -----------------------------------------------------------------------------------------
# The web application: one page, its files, the list of runs, one run, and what changes.

LOCAL = frozenset({"127.0.0.1", "localhost", "[::1]"})
MOST = 60  # runs that are compared at once
TYPES = {"html": "text/html", "js": "text/javascript", "css": "text/css"}


def make_app(root: Path, token: str | None = None) -> Starlette:
    """The page over the runs in ``root``; without a token it answers to local names only."""
    runs = Runs(root)
    charts = {"charts.js": html.page_script(), "charts.css": html.page_style()}

    def page(request: Request) -> Response:
        return _file("watch.html", asset("shoal.reports.watch", "watch.html"))

    def part_of_page(request: Request) -> Response:
        name = request.path_params["name"]
        if name in charts:
            return _file(name, charts[name])
        if name in ("watch.js", "watch.css"):
            return _file(name, asset("shoal.reports.watch", name))
        return PlainTextResponse("no such file\n", 404)

    def listed(request: Request) -> Response:
        cards = [card._asdict() for card in runs.cards()]
        return _json({"folder": str(root.resolve()), "runs": cards})

    def one(request: Request) -> Response:
        try:
            return _json(runs.page(request.query_params.get("name", "")))
        except NotShownError as error:
            return JSONResponse({"error": str(error)}, 404)

    def several(request: Request) -> Response:
        names = request.query_params.getlist("name")[:MOST]
        try:
            return _json(runs.compared(names))
        except NotShownError as error:
            return JSONResponse({"error": str(error)}, 404)

    async def events(request: Request) -> Response:
        return StreamingResponse(changes(runs.stamps), media_type="text/event-stream")

    return Starlette(
        routes=[
            Route("/", page),
            Route("/assets/{name}", part_of_page),
            Route("/api/runs", listed),
            Route("/api/run", one),
            Route("/api/compare", several),
            Route("/api/events", events),
        ],
        middleware=[Middleware(AccessControl, token=token, hosts=None if token else LOCAL)],
    )


def _file(name: str, text: str) -> Response:
    return Response(text, media_type=TYPES[name.rsplit(".", 1)[1]])


def _json(value: object) -> Response:
    return Response(dump_json(value), media_type="application/json")


# ---- serve ---------------------------------------------------------------------------------------
# Serving the page from the command line.

LOCAL_HOSTS = ("127.0.0.1", "localhost", "::1")


def serve(root: Path, host: str, port: int, say: Callable[[str], None]) -> None:
    """Serve until interrupted; ``port`` 0 takes a free one."""
    token = None if host in LOCAL_HOSTS else secrets.token_urlsafe(24)
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
