"""The cluster: where it is, what a worker asks of it, and a sentence when nobody answers."""

from __future__ import annotations

import logging
import os
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

from shoal.core.errors import UserError
from shoal.core.machine import cores

KNOCK = 5.0  # seconds for a port to open
ANSWER = 12.0  # seconds for the head behind it to say something
NO_TOKEN = "no token"
PORT = {False: "port=6379", True: "ray-client-server-port=10001"}  # of nodes, of Ray's client
# A process of its own: where nobody answers, Ray waits for a minute and then ends its process.
ASK_HEAD = """
import sys
from ray._raylet import GcsClient
GcsClient(address=sys.argv[1]).internal_kv_get(b"shoal", None, timeout=5)
"""
# Ray's client says "connection timeout" whatever the server said.
ASK_CLIENT_SERVER = """
import sys, grpc
from ray._private.grpc_utils import init_grpc_channel
from ray.core.generated import ray_client_pb2 as words, ray_client_pb2_grpc as calls
server = calls.RayletDriverStub(init_grpc_channel(sys.argv[1]))
try:
    server.ClusterInfo(words.ClusterInfoRequest(type=words.ClusterInfoType.PING), timeout=5)
except grpc.RpcError as error:
    sys.exit(f"{error.code().name}: {error.details()}")
"""


@dataclass(frozen=True)
class Cluster:
    """Which cluster, and what each worker asks for.

    ``address``: of the head (``host:port``), ``auto``, ``ray://host:port`` for Ray's client, or
    None for ``RAY_ADDRESS``, or else a Ray of our own on this machine. ``workers``: None takes the
    cores that are free. ``patience``: seconds to wait for the first worker.
    """

    address: str | None = None
    workers: int | None = None
    cpus_per_worker: int = 1
    memory: int | None = None  # bytes
    runtime_env: Mapping[str, Any] = field(default_factory=dict)
    working_dir: str | None = None
    patience: float = 60.0

    @property
    def environment(self) -> dict[str, Any]:
        """Ray's ``runtime_env`` of the run."""
        own = {} if self.working_dir is None else {"working_dir": self.working_dir}
        return {**self.runtime_env, **own}

    def folders(self, path: Sequence[str]) -> list[str]:
        """Of the driver's ``path``, what workers look in too: not where the folder lies that they
        get a copy of, or each of its modules would be there twice."""
        own = self.working_dir and Path(self.working_dir).resolve()
        return [folder for folder in path if Path(folder).resolve() != own]


@dataclass(frozen=True)
class Connection:
    """Ray; whether it was us who started or joined it; the head's host and port, where known."""

    ray: Any
    ours: bool
    head: tuple[str, int] | None


def connected(cluster: Cluster) -> Connection:
    """Join the cluster, or start one here. Where nobody answers it says so within 20 seconds."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # a simulation tells nobody about itself
    os.environ.setdefault("RAY_CLIENT_RECONNECT_GRACE_PERIOD", "10")  # seconds
    os.environ.setdefault("RAY_CLIENT_MAX_CONNECTION_TIMEOUT_S", "5")  # of three attempts each
    ray = _imported()
    if ray.is_initialized():
        if cluster.environment:
            raise UserError(
                "ray.runtime_env, ray.working_dir: Ray runs in this process already, and its "
                "environment cannot be changed; give it to ray.init"
            )
        return Connection(ray, False, _head(ray))
    address = cluster.address or os.environ.get("RAY_ADDRESS") or "local"
    options: dict[str, Any] = {"logging_level": logging.ERROR, "log_to_driver": False}
    if cluster.environment:
        options["runtime_env"] = _possible(cluster.environment)
    if address == "local":
        most = cluster.workers and cluster.workers * cluster.cpus_per_worker
        options |= {"num_cpus": most or cores(), "include_dashboard": False}
    else:
        address = _answering(address)
    try:
        ray.init(address=address, **options)
    except Exception as error:  # Ray has no class of its own for most of them
        ray.shutdown()  # a client that failed would answer for every later cluster
        raise _not_joined(address, error) from None
    if address.startswith("ray://"):  # the head's own port may be closed from here
        return Connection(ray, True, _split(address, address.removeprefix("ray://")))
    return Connection(ray, True, None if address == "local" else _head(ray))


def _imported() -> Any:
    """Ray, which else looks for another cluster whenever it has lost one. It reads that as it is
    imported; a head that we start must not read it."""
    name = "RAY_ENABLE_AUTO_CONNECT"
    before = os.environ.get(name)
    os.environ[name] = "0"
    try:
        return import_module("ray")
    finally:
        del os.environ[name]
        if before is not None:
            os.environ[name] = before


def _possible(environment: dict[str, Any]) -> dict[str, Any]:
    """The environment, once Ray has nothing to say against it."""
    try:
        import_module("ray.runtime_env").RuntimeEnv(**environment)
    except (TypeError, ValueError) as error:
        raise UserError(f"ray.runtime_env, ray.working_dir: {_first_line(error)}") from None
    return environment


def answers(head: tuple[str, int], seconds: float = 1.0) -> bool:
    """Whether somebody listens there."""
    try:
        socket.create_connection(head, timeout=seconds).close()
    except OSError:
        return False
    return True


def _answering(address: str) -> str:
    """The address, once it is known that a Ray head, or its server for clients, is there."""
    if address == "auto":
        try:
            found = import_module("ray._private.services").canonicalize_bootstrap_address_or_die
            address = found("auto")
        except ConnectionError:
            raise UserError(
                "ray.address: 'auto', and no Ray runs on this machine; start one (ray start "
                "--head), or write the head's host:port"
            ) from None
    client, place = address.startswith("ray://"), address.removeprefix("ray://")
    if not answers(_split(address, place), KNOCK):
        raise _nobody(address, f"ray start --head --{PORT[client]}")
    try:
        asked = [sys.executable, "-c", ASK_CLIENT_SERVER if client else ASK_HEAD, place]
        done = subprocess.run(asked, capture_output=True, text=True, timeout=ANSWER)
        said = "" if done.returncode == 0 else _said(done.stderr)
    except subprocess.TimeoutExpired:
        said = f"no answer in {ANSWER:.0f} seconds"
    if said == NO_TOKEN:
        raise _no_token(address)
    if said and client:
        raise _no_client(address, said)
    if said:
        raise UserError(
            f"ray.address: something listens at {address}, but it does not answer as the head of a "
            f"Ray cluster of this version ({said}); {_token()}; try: ray status --address {address}"
        )
    return address


def _said(stderr: str) -> str:
    """Ray's sentence; what surrounds it are warnings and the addresses of a stack."""
    signs = ("InvalidAuthToken", "AuthenticationTokenLoader", "AuthenticationError",
             "UNAUTHENTICATED")  # fmt: skip
    if any(sign in stderr for sign in signs):
        return NO_TOKEN  # with the mode but without a token, Ray ends its process
    lines = [line.strip() for line in stderr.splitlines() if line.strip()]
    raised = [line for line in lines if line.partition(":")[0].endswith(("Error", "Exception"))]
    return (raised or lines or ["no word"])[-1].removeprefix("ray.exceptions.")[:300]


def _not_joined(address: str, error: Exception) -> UserError:
    """Why ``ray.init`` did not join."""
    said = _said(f"{type(error).__name__}: {error}")
    if said == NO_TOKEN:
        return _no_token(address)
    if "client server failed" in str(error) or "failure from server" in str(error):
        return UserError(
            f"ray.address: the head at {address} could not start a process for its client "
            f"({said}); try again, or start the head with GRPC_ENABLE_FORK_SUPPORT=0 in its "
            "environment, or use ray job submit"
        )
    if isinstance(error, ConnectionError) and address.startswith("ray://"):
        return _no_client(address, said)
    return UserError(f"ray.address: {_where(address)} ({said})")


def _no_client(address: str, said: str) -> UserError:
    return UserError(
        f"ray.address: something listens at {address}, but no client of Ray of this version can "
        f"join there ({said}); {_token()}; is it the port of ray start's --ray-client-server-port?"
    )


def _no_token(address: str) -> UserError:
    return UserError(
        f"ray.address: the Ray cluster at {address} asks for a token, as ray start --head does "
        f"where nothing else is said, and gets none or another one; {_token()}"
    )


def _token() -> str:
    """What is known of token authentication here."""
    if os.environ.get("RAY_AUTH_MODE") != "token":
        return "if the cluster wants a token, set RAY_AUTH_MODE=token and RAY_AUTH_TOKEN_PATH"
    named = [name for name in ("RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH") if name in os.environ]
    return f"the token is from {named[0] if named else '~/.ray/auth_token'}: is it the cluster's?"


def _split(address: str, host_port: str) -> tuple[str, int]:
    host, colon, port = host_port.rpartition(":")
    if not (colon and host and port.isdigit() and 0 < int(port) < 2**16):
        raise UserError(
            f"ray.address: {address!r} is none; write host:port of the head (ray start --head "
            "prints it), ray://host:port, or auto"
        )
    return host.strip("[]"), int(port)


def _nobody(address: str, start: str) -> UserError:
    return UserError(
        f"ray.address: nobody answers at {address}; is the head running ({start}), and is the port "
        f"open from here? Without a cluster, leave ray.address out"
    )


def _where(address: str) -> str:
    return "no Ray could be started here" if address == "local" else f"no Ray at {address!r}"


def _first_line(error: Exception) -> str:
    return next(iter(str(error).strip().splitlines()), type(error).__name__)


def _head(ray: Any) -> tuple[str, int] | None:
    try:
        host, _, port = str(ray.get_runtime_context().gcs_address).rpartition(":")
        return (host.strip("[]"), int(port)) if port.isdigit() else None
    except Exception:  # Ray's client does not say
        return None
