"""A federation on this machine: SuperLink, members and server app as real processes.

TLS and node authentication are on, with certificates and keys made here, unless ``insecure`` is
spelled out. The owner's side of the SuperLink is closed to others in any case.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from shoal.durable import private
from shoal.errors import UserError
from shoal.flower.certificates import make_certificates
from shoal.flower.keys import new_key, read_key
from shoal.flower.layout import Place, Up
from shoal.flower.link import Link, owners_link
from shoal.flower.new_app import agreement_of
from shoal.flower.processes import SHOAL, SUPERLINK, SUPERLINK_COMMAND, Processes
from shoal.flower.roster import Roster
from shoal.lock import end_holder

START_SECONDS = 120.0  # for the SuperLink to answer
Say = Callable[[str], None]


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def prepare(place: Place, up: Up, hosts: Sequence[str]) -> None:
    """Certificates, keys, the owner's token and secret, roster and the members' data."""
    if not place.authority.exists():  # the owner's side has TLS even if members do without
        make_certificates(place.certificates, [*hosts, "localhost", "127.0.0.1"])
    place.owner.make()
    for database in place.path.glob(f"{place.database.name}*"):
        database.chmod(0o600)
    roster = Roster(place.roster)
    for index in range(up.nodes):
        home = place.node(index)
        key = read_key(home / "key") if (home / "key").exists() else new_key(home / "key")
        home.chmod(0o700)  # its rows are in it
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
        with open(place.node(index) / "data.npz", "wb", opener=private) as file:
            np.savez(file, x=x, y=data.labels.numpy())


def superlink_command(place: Place, up: Up) -> list[str]:
    owner, folder = place.owner, place.certificates
    command = [*SUPERLINK_COMMAND, "--owner", str(owner.folder)]
    command += ["--door", up.host, str(up.port), "--database", str(place.database)]
    command += ["--disable-runtime-dependency-installation"]
    command += ["--isolation", "process", "--superexec-auth-secret-file", str(owner.secret_file)]
    command += ["--ssl-certfile", str(folder / "server.crt")]
    command += ["--ssl-keyfile", str(folder / "server.key")]
    command += ["--ssl-ca-certfile", str(place.authority)]
    return [*command, "--insecure" if up.insecure else "--enable-supernode-auth"]


def node_command(place: Place, up: Up, index: int) -> list[str]:
    home = place.node(index)
    command = [*SHOAL, "flower", "node", "--superlink", up.address, "--name", home.name]
    command += ["--federation", str(agreement_of(Path(up.app))), "--data", str(home / "data.npz")]
    command += ["--key", str(home / "key"), "--home", str(home)]
    return [*command, *(["--insecure"] if up.insecure else ["--ca", str(place.authority)])]


def needs_doors() -> None:
    """Refuse a Flower that lacks what keeps strangers out."""
    try:
        import shoal.flower.superlink  # noqa: F401
    except ImportError as error:
        raise UserError(f"the installed Flower lacks what keeps strangers out ({error}); nothing "
                        "was started; install flwr>=1.41,<1.43") from None  # fmt: skip


class Federation:
    """A federation that is up."""

    def __init__(self, place: Place, up: Up, say: Say) -> None:
        self.place, self.up, self.say = place, up, say
        self.processes = Processes(place.logs, place.path / "flwr")
        self._link: Link | None = None

    def __enter__(self) -> Federation:
        return self

    def __exit__(self, *args: object) -> None:
        self._hang_up()
        self.processes.stop()
        self.place.owner.closed()
        end_holder(self.place.lock)  # without its SuperLink it would linger

    @property
    def link(self) -> Link:
        if self._link is None:
            self._link = owners_link(self.place)
        return self._link

    def start_superlink(self) -> None:
        needs_doors()
        self._hang_up()
        self.place.owner.closed()
        process = self.processes.start(SUPERLINK, superlink_command(self.place, self.up))
        until = time.monotonic() + START_SECONDS
        while True:
            try:
                self.link.wait(1.0)
                break
            except UserError:
                if process.poll() is not None or time.monotonic() > until:
                    raise UserError(f"the SuperLink did not start{self._why()}; see "
                                    f"{self.place.superlink_log}") from None  # fmt: skip
                time.sleep(0.1)
        for entry in Roster(self.place.roster).entries:
            self.link.register(entry.name, entry.public)
        kind = "INSECURE, without TLS" if self.up.insecure else "TLS and node authentication are on"
        self.say(f"SuperLink at {self.up.address} ({kind})")

    def _hang_up(self) -> None:
        if self._link is not None:
            self._link.close()
            self._link = None

    def _why(self) -> str:
        """What the SuperLink said last, if it refused to start."""
        lines = self.place.superlink_log.read_text(errors="replace").splitlines()
        said = lines[-1] if lines else ""
        return f" ({said.removeprefix('shoal: ')})" if said.startswith("shoal: ") else ""

    @property
    def superlink_runs(self) -> bool:
        return self.processes.running[SUPERLINK].poll() is None

    def restart_superlink(self) -> None:
        """A new SuperLink on the old one's database, so that nodes stay who they are to it.

        A server app that outlived its SuperLink can do nothing but hold the run's directory.
        """
        self.processes.sweep(SUPERLINK)
        end_holder(self.place.lock)
        self.start_superlink()

    def start_node(self, index: int) -> None:
        name = self.place.node(index).name
        self.processes.start(name, node_command(self.place, self.up, index))

    def start_run(self) -> int:
        settings = {**self.up.settings, "out": str(self.place.run.absolute())}
        settings["insecure"] = self.up.insecure
        return self.link.start(Path(self.up.app), settings)
