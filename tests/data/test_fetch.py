"""Downloads against a server on this machine: whole or not at all, and checked."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from shoal.core.errors import UserError
from shoal.data.download import About, Remote, fetch, find, locate
from shoal.data.sources import dated_tables, load

BODY = bytes(range(256)) * 1000
MD5 = hashlib.md5(BODY).hexdigest()
SHA = hashlib.sha256(BODY).hexdigest()
GIT = {
    "git": "ed99543dba99b885850a5e5a6bf95545aaa9754c",
    "size": 256_000,
}  # as git hash-object says


class Handler(BaseHTTPRequestHandler):
    """``/good``, ``/short`` (promises more than it sends), ``/silent`` (no length), else 404."""

    body = BODY
    asked: list[str] = []

    def do_GET(self) -> None:
        self.asked.append(self.path)
        if self.path not in ("/good", "/short", "/silent"):
            self.send_error(404)
            return
        self.send_response(200)
        if self.path != "/silent":
            extra = 1000 if self.path == "/short" else 0
            self.send_header("Content-Length", str(len(self.body) + extra))
        self.end_headers()
        self.wfile.write(self.body)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setattr(Handler, "body", BODY)
    monkeypatch.setattr(Handler, "asked", [])
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    served = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=served.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{served.server_port}"
    served.shutdown()
    served.server_close()
    thread.join()


def left(folder: Path) -> list[str]:
    return sorted(p.name for p in folder.rglob("*") if p.is_file())


@pytest.mark.parametrize("sums", [{"md5": MD5}, {"sha256": SHA}, {"sha256": SHA, "md5": "no"}, GIT])
def test_a_good_file_is_kept_under_its_name_and_fetched_once(
    server: str, tmp_path: Path, sums: dict[str, str]
) -> None:
    seen: list[tuple[int, int | None]] = []
    remote = Remote(f"{server}/good", "deep/file.bin", **sums)  # type: ignore[arg-type]
    for _ in range(2):
        path = fetch(remote, tmp_path, "x", lambda _, done, total: seen.append((done, total)))
        assert path.read_bytes() == BODY
    assert Handler.asked == ["/good"] and left(tmp_path) == ["file.bin"]
    assert seen[-1] == (len(BODY), len(BODY))
    assert [d for d, _ in seen] == sorted(d for d, _ in seen)


def test_without_a_published_checksum_the_first_fetch_binds_later_ones(
    server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    remote = Remote(f"{server}/good", "file.bin")
    fetch(remote, tmp_path, "x").unlink()
    assert (tmp_path / "file.bin.sha256").read_text().split() == [SHA, "file.bin"]
    fetch(remote, tmp_path, "x").unlink()
    monkeypatch.setattr(Handler, "body", BODY[:-1] + b"!")
    with pytest.raises(UserError, match="of the first fetch"):
        fetch(remote, tmp_path, "x")
    assert left(tmp_path) == ["file.bin.sha256"]


@pytest.mark.parametrize(
    ("path", "options", "says"),
    [
        ("/good", {"md5": "0" * 32}, "has the md5 .* published is 0000.*not kept"),
        ("/good", {"sha256": "0" * 64}, "has the sha256"),
        ("/good", {"git": "0" * 40, "size": 256_000}, "has the git"),
        ("/good", {"size": 5}, "gave 256,000 of 5 bytes"),
        ("/short", {"md5": MD5}, "257,000|IncompleteRead|cannot be reached"),
        ("/silent", {"size": 300_000}, "gave 256,000 of 300,000 bytes"),
        ("/lost", {}, "answers 404 .*SHOAL_DATA"),
    ],
)
def test_a_bad_answer_leaves_nothing_behind(
    server: str, tmp_path: Path, path: str, options: dict[str, str], says: str
) -> None:
    remote = Remote(server + path, "file.bin", **options)  # type: ignore[arg-type]
    with pytest.raises(UserError, match=says):
        fetch(remote, tmp_path, "x")
    assert left(tmp_path) == []


def test_offline_is_one_sentence_with_what_to_do(cache: Path) -> None:
    about = About("toy", "", "", 2, (1,), remotes=(Remote("http://127.0.0.1:9/a", "a.bin"),))
    with pytest.raises(UserError, match="'toy' is not here.*put the files.*SHOAL_DATA") as caught:
        locate(about)
    assert str(cache / "toy") in str(caught.value) and "\n" not in str(caught.value)


def test_what_no_address_brings_says_how_to_get_it(cache: Path) -> None:
    about = About("toy", "", "", 2, (1,), forms={"arrays": ("a.npz",)}, by_hand="ask for it")
    with pytest.raises(UserError, match="ask for it, then put a.npz into .*toy"):
        locate(about)


def test_the_given_folder_comes_before_the_cache_and_the_cache_before_the_network(
    server: str, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    about = About("toy", "", "", 2, (1,), forms={"arrays": ("x.npz", "y.npz")},
                  remotes=(Remote(f"{server}/good", "a.bin", md5=MD5),))  # fmt: skip
    assert find(about) is None
    fetched = locate(about)
    assert fetched == (cache / "toy", "official") and fetched / "a.bin" == cache / "toy" / "a.bin"
    given = tmp_path / "given"
    monkeypatch.setenv("SHOAL_DATA", str(given))
    assert find(about) == fetched
    (given / "toy").mkdir(parents=True)
    (given / "toy" / "x.npz").touch()
    assert find(about) == fetched, "half a form is none"
    (given / "toy" / "y.npz").touch()
    assert locate(about) == (given / "toy", "arrays")
    assert Handler.asked == ["/good"]


def test_flights_are_fetched_checked_and_read(
    server: str, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The address in a config that names flights, on this machine: the file as it is published."""
    path = tmp_path / "made.parquet"
    when = np.datetime64("2001-01-01", "ms") + np.arange(40) * np.timedelta64(1, "h")
    places = np.array(["BOS", "ATL"])[np.arange(40) % 2]
    columns = {"date": when, "delay": np.arange(40, dtype=np.int16), "origin": places,
               "distance": np.full(40, 500, np.int16), "destination": places[::-1]}  # fmt: skip
    pq.write_table(pa.table(columns), path)
    body = path.read_bytes()
    git = hashlib.sha1(f"blob {len(body)}\0".encode() + body).hexdigest()
    remote = dated_tables.FLIGHTS.remotes[0]._replace(url=f"{server}/good", git=git, size=len(body))
    about = replace(dated_tables.FLIGHTS, remotes=(remote,))
    monkeypatch.setattr(dated_tables, "FLIGHTS", about)
    monkeypatch.setattr(Handler, "body", body[:-1] + b"?")
    with pytest.raises(UserError, match="the file was not kept"):
        load("flights")
    assert left(cache) == []
    monkeypatch.setattr(Handler, "body", body)
    for _ in range(2):
        data = load("flights", late=19)
        assert data.names == ("ATL", "BOS") and int(data.train.y.sum() + data.test.y.sum()) == 20
    assert Handler.asked == ["/good", "/good"], "kept, so fetched no third time"
    assert left(cache) == ["flights-3m.parquet"]
