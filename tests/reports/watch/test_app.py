"""The live page over HTTP: what it answers, and what it refuses."""

from __future__ import annotations

import asyncio
import json
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest
from reports.watch.made import CONFIG, append, finish, made_run

pytest.importorskip("starlette", reason="the watch extra is not installed")
pytest.importorskip("httpx", reason="httpx is not installed")

from starlette.testclient import TestClient

from shoal.cli import call
from shoal.reports.watch.app import changes, make_app
from shoal.reports.watch.runs import Runs

HOSTILE = '<img src=x onerror="document.title=1">'


@pytest.fixture
def root(tmp_path: Path) -> Path:
    made_run(tmp_path / "a")
    made_run(tmp_path / "b")
    return tmp_path


@pytest.fixture
def client(root: Path) -> Iterator[TestClient]:
    with TestClient(make_app(root), base_url="http://127.0.0.1:8642") as client:
        yield client


def test_the_page_and_its_files_come_from_the_package(client: TestClient) -> None:
    page = client.get("/")
    assert page.status_code == 200 and "text/html" in page.headers["content-type"]
    for name in ("charts.js", "charts.css", "watch.js", "watch.css"):
        assert f"/assets/{name}" in page.text
        assert client.get(f"/assets/{name}").status_code == 200
        assert "http://" not in client.get(f"/assets/{name}").text.replace(
            "http://www.w3.org/2000/svg", ""
        )
    assert "default-src 'none'" in page.headers["content-security-policy"]
    assert page.headers["cache-control"] == "no-store"


def test_runs_are_listed_opened_and_compared(client: TestClient) -> None:
    listed = client.get("/api/runs").json()
    assert [run["name"] for run in listed["runs"]] == ["a", "b"]
    found = client.get("/api/run", params={"name": "a"}).json()
    assert found["card"]["done"] == 4
    assert found["page"]["series"]["accuracy"]["mean"] == [0.0, 0.1, 0.2, 0.3]
    both = client.get("/api/compare", params={"name": ["a", "b"]}).json()
    assert [card["name"] for card in both["cards"]] == ["a", "b"]
    assert both["versus"]["groups"] and both["rounds"] == 8


def test_a_run_is_followed_over_a_crash_and_a_resume(client: TestClient, root: Path) -> None:
    def done() -> list[int]:
        page = client.get("/api/run", params={"name": "a"}).json()["page"]
        assert page["rounds"]["done"] == len(page["x"])
        return list(page["x"])

    append(root / "a", [4, 5])
    assert done() == [0, 1, 2, 3, 4, 5]
    rounds = root / "a" / "rounds.jsonl"
    rounds.write_text("".join(rounds.read_text().splitlines(keepends=True)[:3]))
    assert done() == [0, 1, 2]
    append(root / "a", range(3, 8), seconds=0.5)
    finish(root / "a", 8)
    assert done() == list(range(8))
    found = client.get("/api/run", params={"name": "a"}).json()
    assert (found["card"]["state"], found["page"]["state"]) == ("finished", "finished")


def test_a_run_without_a_round_is_waited_for(client: TestClient, root: Path) -> None:
    made_run(root / "new", rounds=0)
    found = client.get("/api/run", params={"name": "new"}).json()
    assert found["page"] is None and found["card"]["state"] == "waiting"
    assert client.get("/api/compare", params={"name": ["a", "new"]}).json()["versus"] is None


@pytest.mark.parametrize(
    "name",
    ["../secret", "..", "a/..", "a/../../secret", "/etc", "a/", "./a", "", "%2e%2e/secret", "\0"],
)
def test_names_that_were_not_listed_open_nothing(root: Path, name: str) -> None:
    inside = root / "inside"
    made_run(inside / "a")
    made_run(root / "secret")
    with TestClient(make_app(inside), base_url="http://localhost") as client:
        for path in ("/api/run", "/api/compare"):
            answer = client.get(path, params={"name": name})
            assert answer.status_code == 404
            assert "secret" not in answer.text


@pytest.mark.parametrize(
    "path",
    ["/assets/../app.py", "/assets/..%2fapp.py", "/assets/app.py", "/assets/", "/etc/passwd"],
)
def test_other_files_are_not_served(client: TestClient, path: str) -> None:
    assert client.get(path).status_code == 404


def test_hostile_names_and_configs_travel_as_text(root: Path) -> None:
    made_run(root / HOSTILE.replace("/", ""), config=CONFIG + f"note: '{HOSTILE}'\n")
    with TestClient(make_app(root), base_url="http://127.0.0.1") as client:
        answer = client.get("/api/run", params={"name": HOSTILE})
        assert answer.headers["content-type"] == "application/json"
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert HOSTILE in answer.json()["page"]["config"]
        assert HOSTILE not in client.get("/", params={"run": HOSTILE}).text


def test_the_command_that_resumes_can_be_pasted_into_a_shell(root: Path) -> None:
    made_run(root / "a; touch hit")
    with TestClient(make_app(root), base_url="http://127.0.0.1") as client:
        card = client.get("/api/run", params={"name": "a; touch hit"}).json()["card"]
    assert shlex.split(card["resume"]) == ["shoal", "resume", str(root / "a; touch hit")]


def test_a_foreign_name_for_this_host_is_refused(root: Path) -> None:
    with TestClient(make_app(root), base_url="http://evil.example") as client:
        assert client.get("/api/runs").status_code == 400


def test_elsewhere_the_token_is_needed_once_and_kept_in_a_cookie(root: Path) -> None:
    app = make_app(root, token="right-token")
    with TestClient(app, base_url="http://192.0.2.1") as client:
        for path in ("/", "/api/runs", "/api/run?name=a", "/api/events", "/assets/watch.js"):
            assert client.get(path).status_code == 401
        assert client.get("/", params={"token": "wrong-token"}).status_code == 401
        assert client.get("/", params={"token": "right-token"}).status_code == 200
        assert client.get("/api/runs").status_code == 200
    with TestClient(app, base_url="http://192.0.2.1", cookies={"shoal_token": "no"}) as client:
        assert client.get("/api/runs").status_code == 401


def test_events_name_what_changed(root: Path) -> None:
    """The folder changes between two looks; no clock is involved."""
    todo = [
        lambda: append(root / "a", [4]),
        lambda: None,
        lambda: made_run(root / "c"),
    ]

    async def pause() -> None:
        todo.pop(0)()

    async def heard() -> list[list[str]]:
        stream = changes(Runs(root).stamps, pause)
        found = [await anext(stream) for _ in range(3)]
        await stream.aclose()
        return [json.loads(event.removeprefix("data: "))["changed"] for event in found]

    assert asyncio.run(heard()) == [[], ["a"], ["c"]]
    assert not todo


def test_watch_says_what_is_wrong_in_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call(["watch", str(tmp_path / "nowhere")]) == 2
    assert "is no directory" in capsys.readouterr().err
    monkeypatch.setattr("shoal.cli.reports.find_spec", lambda name: None)
    assert call(["watch", str(tmp_path)]) == 2
    assert "pip install 'shoal[watch]'" in capsys.readouterr().err
