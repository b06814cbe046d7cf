"""The web application: one page, its files, the list of runs, one run, and what changes."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from shoal.reports import assets
from shoal.rundir import dump_json
from shoal.watch.door import Door
from shoal.watch.runs import NotShownError, Runs
from shoal.watch.stream import changes

LOCAL = frozenset({"127.0.0.1", "localhost", "[::1]"})
MOST = 60  # runs that are compared at once
TYPES = {"html": "text/html", "js": "text/javascript", "css": "text/css"}


def make_app(root: Path, token: str | None = None) -> Starlette:
    """The page over the runs in ``root``; without a token it answers to local names only."""
    runs = Runs(root)
    charts = {"charts.js": assets.script(), "charts.css": assets.style()}

    def page(request: Request) -> Response:
        return _file("watch.html", _own("watch.html"))

    def asset(request: Request) -> Response:
        name = request.path_params["name"]
        if name in charts:
            return _file(name, charts[name])
        if name in ("watch.js", "watch.css"):
            return _file(name, _own(name))
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
            Route("/assets/{name}", asset),
            Route("/api/runs", listed),
            Route("/api/run", one),
            Route("/api/compare", several),
            Route("/api/events", events),
        ],
        middleware=[Middleware(Door, token=token, hosts=None if token else LOCAL)],
    )


def _own(name: str) -> str:
    return (files("shoal.watch") / "assets" / name).read_text(encoding="utf-8")


def _file(name: str, text: str) -> Response:
    return Response(text, media_type=TYPES[name.rsplit(".", 1)[1]])


def _json(value: object) -> Response:
    return Response(dump_json(value), media_type="application/json")
