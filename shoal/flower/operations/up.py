"""A federation on this machine: where its owner keeps what, and its processes (SuperLink, members
and server app) with their logs.

TLS and node authentication are on, with certificates and keys made here, unless ``insecure`` is
spelled out. The owner's side of the SuperLink is closed to others in any case.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np

from shoal.core.errors import UserError
from shoal.core.files import dump_json, end_holder, private, private_folder, write_text
from shoal.flower.agreement import load_agreement
from shoal.flower.apps import agreement_of, member_columns
from shoal.flower.keys import make_certificates, new_key, read_key
from shoal.flower.operations.owner import Owner, SuperLinkClient
from shoal.flower.server.members import MemberRegistry
from shoal.flower.server.record import LOCK
from shoal.runs.journal import names_of

# ---- places ----


class FederationFolder:
    """The directory of ``shoal flower up``."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.settings = path / "up.json"
        self.certificates = path / "certificates"
        self.authority = self.certificates / "ca.crt"
        self.owner = Owner(path / "owner")  # token, secret and port of the SuperLink's inner side
        self.database = path / "superlink.db"  # the SuperLink's; tokens of running apps are in it
        self.run = path / "run"
        self.roster = self.run / "roster.json"
        self.lock = self.run / LOCK  # held by the one server that uses the run
        self.names = path / "names.json"  # of members on this machine, where their data have some
        self.logs = path / "logs"
        self.superlink_log = self.logs / "superlink.log"

    @property
    def finished(self) -> bool:
        return (self.run / "summary.json").exists()

    def node(self, index: int) -> Path:
        return self.path / "nodes" / f"node-{index:02d}"


@dataclass(frozen=True)
class UpOptions:
    """What ``up`` was asked for, kept for ``resume`` and ``status``."""

    app: str
    nodes: int
    host: str
    port: int
    insecure: bool
    settings: dict[str, Any]

    @property
    def address(self) -> str:
        """Where members on this machine find the SuperLink: the outer port, theirs alone."""
        return f"{'127.0.0.1' if self.host in ('0.0.0.0', '::') else self.host}:{self.port}"

    def write(self, place: FederationFolder) -> None:
        private_folder(place.path)
        write_text(place.settings, dump_json(vars(self), indent=2) + "\n")


def read_up(place: FederationFolder) -> UpOptions:
    try:
        return UpOptions(**json.loads(place.settings.read_text()))
    except (OSError, ValueError, TypeError):
        raise UserError(f"{place.path} is no directory of shoal flower up") from None


def owners_link(place: FederationFolder) -> SuperLinkClient:
    """To the SuperLink of a directory; refused if none has started there."""
    owner = place.owner
    return SuperLinkClient(owner.address(), place.authority, owner.token())


# ---- processes ----
SUPERLINK = "superlink"
SHOAL = [sys.executable, "-c", "from shoal.cli import main; main()"]
SUPERLINK_COMMAND = [
    sys.executable,
    "-c",
    "from shoal.flower.operations.superlink import main; main()",
    "flower-superlink",
]


def environment(home: Path) -> dict[str, str]:
    """Flower's programs from this installation, its files in ``home``, no telemetry."""
    here = str(Path(sys.executable).parent)
    return {
        **os.environ,
        "PATH": f"{here}{os.pathsep}{os.environ.get('PATH', '')}",
        "FLWR_HOME": str(home),
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.5",
        "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1"),
    }


class ProcessGroup:
    """Each in a group of its own; leaving the ``with`` block stops all of them."""

    def __init__(self, logs: Path, home: Path) -> None:
        logs.mkdir(parents=True, exist_ok=True)
        self.logs, self.environment = logs, environment(home)
        self.running: dict[str, subprocess.Popen[bytes]] = {}
        self._files: list[IO[bytes]] = []

    def start(self, name: str, command: Sequence[str]) -> subprocess.Popen[bytes]:
        log = open(self.logs / f"{name}.log", "ab", opener=private)  # noqa: SIM115
        self._files.append(log)
        process = subprocess.Popen(
            list(command),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env=self.environment,
            start_new_session=True,
        )
        self.running[name] = process
        return process

    def sweep(self, name: str) -> None:
        """End a process at once, with whatever it left in its group."""
        process = self.running.pop(name)
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()

    def __enter__(self) -> ProcessGroup:
        return self

    def __exit__(self, *args: object) -> None:
        self.stop()

    def stop(self, patience: float = 5.0) -> None:
        """Ask all to end, the SuperLink after those who say goodbye to it, then end them.

        Whatever they started watches its parent and follows.
        """
        last = [p for name, p in self.running.items() if name == SUPERLINK]
        for group in ([p for p in self.running.values() if p not in last], last):
            self._stop(group, patience)
        for file in self._files:
            file.close()
        self.running.clear()

    def _stop(self, group: Sequence[subprocess.Popen[bytes]], patience: float) -> None:
        for process in group:
            _signal(process, signal.SIGCONT)
            _signal(process, signal.SIGTERM)
        until = time.monotonic() + patience
        for process in group:
            try:
                process.wait(max(0.1, until - time.monotonic()))
            except subprocess.TimeoutExpired:
                _signal(process, signal.SIGKILL)
                process.wait()


def _signal(process: subprocess.Popen[bytes], sign: signal.Signals) -> None:
    """To the whole group of a process that has not ended."""
    if process.poll() is None:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, sign)


# ---- a federation that is up ----
START_SECONDS = 120.0  # for the SuperLink to answer
Say = Callable[[str], None]


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def prepare(place: FederationFolder, up: UpOptions, hosts: Sequence[str]) -> None:
    """Certificates, keys, the owner's token and secret, roster and the members' data."""
    if not place.authority.exists():  # the owner's side has TLS even if members do without
        make_certificates(place.certificates, [*hosts, "localhost", "127.0.0.1"])
    place.owner.make()
    for database in place.path.glob(f"{place.database.name}*"):
        database.chmod(0o600)
    _write_data(place, up)
    roster = MemberRegistry(place.roster)
    for index in range(up.nodes):
        home = place.node(index)
        key = read_key(home / "key") if (home / "key").exists() else new_key(home / "key")
        home.chmod(0o700)  # its rows are in it
        if not up.insecure:
            roster.add(member_name(place, index), key.public)


def _write_data(place: FederationFolder, up: UpOptions) -> None:
    """Every member's rows of the config's own world, as a file that only its node reads."""
    from shoal.config import load
    from shoal.config.build import build
    from shoal.config.subject import dataset_of

    missing = [i for i in range(up.nodes) if not data_file(place, i).exists()]
    if not missing:
        return
    config = agreement_of(Path(up.app)).with_name("simulation.yaml")
    if not config.exists():
        raise UserError(f"{config} is missing, so there is no data for members on this machine; "
                        "use --nodes 0 and let members bring their own")  # fmt: skip
    read = load(config, ["engine=loop"])
    data = dataset_of(read)
    world = build(read, data=data).world
    if getattr(world, "stream", None) is not None:
        raise UserError(f"{config}: in its world rows arrive as time passes, and members on this "
                        "machine have theirs from the start; take another world")  # fmt: skip
    place.path.mkdir(parents=True, exist_ok=True)
    write_text(place.names, dump_json(names_of(world) or {}) + "\n")
    prepares = load_agreement(agreement_of(Path(up.app))).expects.table is not None
    for index in missing:
        own = world.train(index, 0)
        place.node(index).mkdir(parents=True, exist_ok=True)
        if prepares:
            _write_columns(place.node(index), member_columns(data, own))
            continue
        x = own.pool.x.index_select(0, own.rows).numpy()
        with open(place.node(index) / "data.npz", "wb", opener=private) as file:
            np.savez(file, x=x, y=own.labels.numpy())


def _write_columns(folder: Path, columns: Mapping[str, Any]) -> None:
    """Columns as they are: as Parquet, or arrays where a column has several numbers per row."""
    import pyarrow as pa
    from pyarrow import parquet

    if any(values.ndim > 1 for values in columns.values()):
        with open(folder / "data.npz", "wb", opener=private) as file:
            np.savez(file, **columns)
        return
    with open(folder / "data.parquet", "wb", opener=private) as file:
        parquet.write_table(pa.table({n: pa.array(v) for n, v in columns.items()}), file)


def data_file(place: FederationFolder, index: int) -> Path:
    """The rows of a member on this machine."""
    table = place.node(index) / "data.parquet"
    return table if table.exists() else place.node(index) / "data.npz"


def member_name(place: FederationFolder, index: int) -> str:
    """What a member on this machine is called: as its data name it, else by its number."""
    names = json.loads(place.names.read_text()) if place.names.exists() else {}
    return str(names.get(str(index), place.node(index).name))


def superlink_command(place: FederationFolder, up: UpOptions) -> list[str]:
    owner, folder = place.owner, place.certificates
    command = [*SUPERLINK_COMMAND, "--owner", str(owner.folder)]
    command += ["--door", up.host, str(up.port), "--database", str(place.database)]
    command += ["--disable-runtime-dependency-installation"]
    command += ["--isolation", "process", "--superexec-auth-secret-file", str(owner.secret_file)]
    command += ["--ssl-certfile", str(folder / "server.crt")]
    command += ["--ssl-keyfile", str(folder / "server.key")]
    command += ["--ssl-ca-certfile", str(place.authority)]
    return [*command, "--insecure" if up.insecure else "--enable-supernode-auth"]


def node_command(place: FederationFolder, up: UpOptions, index: int) -> list[str]:
    home = place.node(index)
    command = [*SHOAL, "flower", "node", "--superlink", up.address, "--name"]
    command.append(member_name(place, index))
    command += [
        "--federation",
        str(agreement_of(Path(up.app))),
        "--data",
        str(data_file(place, index)),
    ]
    command += ["--key", str(home / "key"), "--home", str(home)]
    return [*command, *(["--insecure"] if up.insecure else ["--ca", str(place.authority)])]


def needs_doors() -> None:
    """Refuse a Flower that lacks what keeps strangers out."""
    try:
        import shoal.flower.operations.superlink  # noqa: F401
    except ImportError as error:
        raise UserError(f"the installed Flower lacks what keeps strangers out ({error}); nothing "
                        "was started; install flwr>=1.41,<1.43") from None  # fmt: skip


class LocalFederation:
    """A federation that is up."""

    def __init__(self, place: FederationFolder, up: UpOptions, say: Say) -> None:
        self.place, self.up, self.say = place, up, say
        self.processes = ProcessGroup(place.logs, place.path / "flwr")
        self._link: SuperLinkClient | None = None

    def __enter__(self) -> LocalFederation:
        return self

    def __exit__(self, *args: object) -> None:
        self._hang_up()
        self.processes.stop()
        self.place.owner.closed()
        end_holder(self.place.lock)  # without its SuperLink it would linger

    @property
    def link(self) -> SuperLinkClient:
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
        for entry in MemberRegistry(self.place.roster).entries:
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
