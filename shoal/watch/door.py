"""Who may come in: a token where others can reach the page, and no foreign names for this host."""

from __future__ import annotations

import secrets
from http.cookies import CookieError, SimpleCookie
from urllib.parse import parse_qs

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

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


class Door:
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
