"""A federation on this machine: SuperLink, members and server app as real processes.

TLS and node authentication are on, with certificates and keys made here, unless ``insecure`` is
spelled out.
"""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from shoal.errors import UserError
from shoal.flower.certificates import make_certificates
from shoal.flower.keys import new_key, read_key
from shoal.flower.layout import Place, Up, read_up
from shoal.flower.link import Link
from shoal.flower.new_app import agreement_of
from shoal.flower.processes import SHOAL, Processes
from shoal.flower.roster import Roster

START_SECONDS = 120.0  # for the SuperLink to answer
LOOK_SECONDS = 5.0  # between two looks at whether the server app still runs
RESTARTS = 5  # of a server app that died
Say = Callable[[str], None]


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def prepare(place: Place, up: Up, hosts: Sequence[str]) -> None:
    """Certificates, keys, roster and the members' data."""
    if not up.insecure and not place.authority.exists():
        make_certificates(place.certificates, [*hosts, "localhost", "127.0.0.1"])
    roster = Roster(place.roster)
    for index in range(up.nodes):
        home = place.node(index)
        key = read_key(home / "key") if (home / "key").exists() else new_key(home / "key")
        if not up.insecure:
            roster.add(home.name, key.public)
    _write_data(place, up)


def _write_data(place: Place, up: Up) -> None:
    """Every member's rows of the config's own world, as a file that only its node reads."""
    from shoal.config import load
    from shoal.config.build import build

    missing = [i for i in range(up.nodes) if not (place.node(i) / "data.npz").exists()]
    if not missing:
        return
    config = agreement_of(Path(up.app)).with_name("simulation.yaml")
    if not config.exists():
        raise UserError(f"{config} is missing, so there is no data for members on this machine; "
                        "use --nodes 0 and let members bring their own")  # fmt: skip
    world = build(load(config, ["engine=loop"])).world
    for index in missing:
        data = world.train(index, 0)
        x = data.pool.x.index_select(0, data.rows).numpy()
        place.node(index).mkdir(parents=True, exist_ok=True)
        np.savez(place.node(index) / "data.npz", x=x, y=data.labels.numpy())


def superlink_command(place: Place, up: Up) -> list[str]:
    command = ["flower-superlink", "--host", up.host, "--port", str(up.port)]
    command += ["--database", str(place.path / "superlink.db")]
    command += ["--disable-runtime-dependency-installation"]
    if up.insecure:
        return [*command, "--insecure"]
    folder = place.certificates
    return [
        *command,
        "--enable-supernode-auth",
        "--ssl-certfile",
        str(folder / "server.crt"),
        "--ssl-keyfile",
        str(folder / "server.key"),
        "--ssl-ca-certfile",
        str(place.authority),
    ]


def node_command(place: Place, up: Up, index: int) -> list[str]:
    home = place.node(index)
    command = [*SHOAL, "flower", "node", "--superlink", up.address, "--name", home.name]
    command += ["--federation", str(agreement_of(Path(up.app))), "--data", str(home / "data.npz")]
    command += ["--key", str(home / "key"), "--home", str(home)]
    return [*command, *(["--insecure"] if up.insecure else ["--ca", str(place.authority)])]


class Federation:
    """A federation that is up."""

    def __init__(self, place: Place, up: Up, say: Say) -> None:
        self.place, self.up, self.say = place, up, say
        self.processes = Processes(place.logs, place.path / "flwr")
        self._link: Link | None = None

    def __enter__(self) -> Federation:
        return self

    def __exit__(self, *args: object) -> None:
        if self._link is not None:
            self._link.close()
        self.processes.stop()

    @property
    def link(self) -> Link:
        if self._link is None:
            authority = None if self.up.insecure else self.place.authority
            self._link = Link(self.up.address, authority)
        return self._link

    def start_superlink(self) -> None:
        process = self.processes.start("superlink", superlink_command(self.place, self.up))
        until = time.monotonic() + START_SECONDS
        while True:
            try:
                self.link.wait(1.0)
                break
            except UserError:
                if process.poll() is not None or time.monotonic() > until:
                    log = self.place.logs / "superlink.log"
                    raise UserError(f"the SuperLink did not start; see {log}") from None
        for entry in Roster(self.place.roster).entries:
            self.link.register(entry.name, entry.public)
        kind = "INSECURE, without TLS" if self.up.insecure else "TLS and node authentication are on"
        self.say(f"SuperLink at {self.up.address} ({kind})")

    def start_node(self, index: int) -> None:
        name = self.place.node(index).name
        self.processes.start(name, node_command(self.place, self.up, index))

    def start_run(self) -> int:
        settings = {**self.up.settings, "out": str(self.place.run.absolute())}
        settings["insecure"] = self.up.insecure
        return self.link.start(Path(self.up.app), settings)

    def watch(self) -> None:
        """Say what happens until the run is finished; a server app that dies is started again."""
        told, restarts, number = Told(self.place.run, self.say), 0, self.start_run()
        look = time.monotonic() + LOOK_SECONDS
        while not self.place.finished:
            time.sleep(0.5)
            told.more()
            if self.processes.running["superlink"].poll() is not None:
                raise UserError(f"the SuperLink stopped; go on with: shoal flower resume "
                                f"{self.place.path}")  # fmt: skip
            if time.monotonic() < look:
                continue
            look = time.monotonic() + LOOK_SECONDS
            over = dict(self.link.runs()).get(number) == "finished"
            if over and not self.place.finished:
                restarts += 1
                if restarts > RESTARTS:
                    raise UserError(f"the server app stopped {restarts} times; see "
                                    f"{self.place.logs / 'superlink.log'}")  # fmt: skip
                self.say("the server app stopped; starting it again where it was")
                number = self.start_run()
        told.more()


class Told:
    """New lines of the run's log of events and of its rounds."""

    def __init__(self, run: Path, say: Say) -> None:
        self.run, self.say = run, say
        self._seen = {name: self._size(name) for name in ("events.jsonl", "rounds.jsonl")}

    def _size(self, name: str) -> int:
        path = self.run / name
        return path.stat().st_size if path.exists() else 0

    def more(self) -> None:
        for name, shown in (("events.jsonl", _event), ("rounds.jsonl", _round)):
            for line in self._lines(name):
                self.say(shown(line))

    def _lines(self, name: str) -> list[dict[str, Any]]:
        if self._size(name) < self._seen[name]:
            self._seen[name] = self._size(name)  # cut back by a server that was resumed
        if self._size(name) == self._seen[name]:
            return []
        with (self.run / name).open("rb") as file:
            file.seek(self._seen[name])
            content = file.read()
        whole = content[: content.rfind(b"\n") + 1]
        self._seen[name] += len(whole)
        return [json.loads(line) for line in whole.splitlines()]


def _event(line: dict[str, Any]) -> str:
    return str(line["text"])


def _round(line: dict[str, Any]) -> str:
    accuracy = line["received"]["accuracy"]
    scored = "" if accuracy is None else f", the model before it scored {accuracy:.3f}"
    uploads = f"{len(line['accepted'])} of {len(line['cohort'])} uploads accepted"
    return f"round {line['round']}: {uploads} in {line['seconds']:.1f} s{scored}"


def bring_up(place: Place, up: Up, hosts: Sequence[str], say: Say) -> None:
    """Everything from the start (or, in an old directory, from where it was) to the last round."""
    prepare(place, up, hosts)
    up.write(place)
    with Federation(place, up, say) as federation:
        federation.start_superlink()
        for index in range(up.nodes):
            federation.start_node(index)
        federation.watch()


def resume(place: Place, say: Say) -> None:
    """Go on: start the server app again, and whatever else is not there any more."""
    up = read_up(place)
    if place.finished:
        raise UserError(f"{place.path} is finished; there is nothing to resume")
    authority = None if up.insecure else place.authority
    link = Link(up.address, authority)
    try:
        link.wait(1.0)
    except UserError:
        say(f"no SuperLink answers at {up.address}; starting everything again")
        bring_up(place, up, (), say)
        return
    settings = {**up.settings, "out": str(place.run.absolute()), "insecure": up.insecure}
    number = link.start(Path(up.app), settings)
    say(f"the server app was started again as run {number}; it goes on from its checkpoint")
