"""``shoal flower``: real federations."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import typer

from shoal.cli.run import IMPORT
from shoal.core.errors import UserError

app = typer.Typer(
    name="flower",
    no_args_is_help=True,
    help="Real federations on Flower: members that come and go, on machines of their own.",
)
INSECURE = "Without TLS and without authentication: anybody can join and read. For trying only."


def _needs_flower() -> None:
    if find_spec("flwr") is None:
        raise UserError("shoal flower needs Flower; install it with: pip install 'shoal[flower]'")


@app.command()
def new(
    folder: Path = typer.Argument(help="The app's directory; it must not exist or be empty."),
    config: Path = typer.Option(..., "--config", help="A shoal config (YAML)."),
    changes: list[str] = typer.Option([], "--set", metavar="KEY=VALUE", help="Change a key of it."),
    publisher: str = typer.Option("shoal", help="The publisher that Flower's app format asks for."),
    secure: int = typer.Option(
        0, metavar="N", help="Secure aggregation: the server sees sums of N uploads or more only."
    ),
    imports: list[str] = typer.Option([], "--import", metavar="DIR|MODULE", help=IMPORT),
) -> None:
    """Write a ready Flower app from a config.

    Own code that it names stays where it is: members install it, and the agreement has its digest.
    """
    _needs_flower()
    from shoal.cli.play import find_code
    from shoal.config import load
    from shoal.flower.agreed_code import agreed_code
    from shoal.flower.apps import write_app
    from shoal.flower.masking import Secure

    find_code(imports, config.resolve().parent)
    rule, read = Secure(secure) if secure else None, load(config, changes)
    agreed = write_app(folder, read, publisher=publisher, secure=rule)
    typer.echo(f"Wrote {folder}. What members agree to is in {agreed}.")
    for module, digest in agreed_code(read).items():
        typer.echo(f"Every member installs {module} first (SHA-256 {digest[:12]}).")
    typer.echo(f"Try it on this machine: shoal flower up {folder} --nodes 5")


@app.command()
def key(
    path: Path = typer.Argument(help="Where to write the private key (PATH.pub beside it)."),
) -> None:
    """Make a member's key pair."""
    _needs_flower()
    from shoal.flower.keys import fingerprint, new_key, public_file

    if path.exists():
        raise UserError(f"{path} exists; a member keeps its key, since it is known by its key")
    made = new_key(path)
    typer.echo(f"Wrote {path} (0600, keep it) and {public_file(path)} (give it to the server).")
    typer.echo(f"Fingerprint: {fingerprint(made.public)}")


@app.command()
def register(
    place: Path = typer.Argument(help="The directory of shoal flower up."),
    name: str = typer.Argument(help="What the member is called in logs and reports."),
    public: Path = typer.Argument(help="Its public key (.pub)."),
) -> None:
    """Let a member in, before or while the federation runs."""
    _needs_flower()
    from shoal.flower.keys import read_public
    from shoal.flower.operations.up import FederationFolder, owners_link, read_up
    from shoal.flower.server.members import MemberRegistry

    where = FederationFolder(place)
    entry = MemberRegistry(where.roster).add(name, read_public(public))
    typer.echo(f"{name} is member {entry.member} of the roster.")
    if not where.settings.exists():
        return
    read_up(where)
    try:
        link = owners_link(where)
        link.wait(1.0)
    except UserError:
        return
    link.register(name, entry.public)
    typer.echo("The running SuperLink knows it too.")


@app.command()
def node(
    federation: Path = typer.Option(..., help="The agreement: federation.yaml of the server."),
    data: str | None = typer.Option(None, help=".npz, .csv, .parquet or a folder of images."),
    loader: str | None = typer.Option(
        None, help="module:function; it returns (train, validation)."
    ),
    x: str | None = typer.Option(None, help="Column of the inputs (default: all but y)."),
    y: list[str] = typer.Option(["y"], help="Column of the answers; again for each further one."),
    superlink: str = typer.Option("127.0.0.1:8000", help="HOST:PORT that up gave to members."),
    ca: Path | None = typer.Option(None, help="Certificate authority of the SuperLink (ca.crt)."),
    key: Path = typer.Option(Path("node-key"), help="This member's private key."),
    name: str = typer.Option("", help="Name of this member (default: the key's file name)."),
    home: Path = typer.Option(Path("node-home"), help="Where the member keeps its memories."),
    poll: float = typer.Option(1.0, help="Seconds between two looks for work, at most."),
    insecure: bool = typer.Option(False, "--insecure", help=INSECURE),
    check: bool = typer.Option(False, "--check", help="Check data and key, and do not join."),
) -> None:
    """Be a member: check own data against the agreement, then join and train when asked."""
    _needs_flower()
    import torch

    from shoal.flower.agreement import load_agreement
    from shoal.flower.apps import data_of
    from shoal.flower.keys import fingerprint, read_key
    from shoal.flower.node.node import Node
    from shoal.flower.privacy import epsilon

    if not insecure and ca is None and not check:
        raise UserError("--ca is missing: a member checks the SuperLink with the authority's "
                        "certificate (or say --insecure)")  # fmt: skip
    torch.set_num_threads(1)
    agreed = load_agreement(federation)
    found = data_of(data, loader, agreed, x, y)
    own = read_key(key)
    member = Node(agreed, found, own, name or key.stem, home)
    train, rows = member.rows
    typer.echo(
        f"{member.name} ({fingerprint(own.public)}): {train} rows to train, {rows} to "
        f"validate; agreement {agreed.digest[:12]}"
    )
    if agreed.asks:
        whom = "as part of a sum" if agreed.secure is not None else "the server"
        typer.echo(f"before the first round this member tells {whom}: {agreed.expects.told()}")
    if agreed.privacy is not None and agreed.secure is None:
        cost = epsilon(agreed.privacy, 1, alone=True)
        typer.echo(f"privacy: each upload costs epsilon {cost:.3g} against the server, which sees "
                   "single uploads (the agreement has no secure)")  # fmt: skip
    if check:
        return
    from shoal.flower.node.connection import serve, try_again

    try:
        serve(member, superlink, authority=ca, insecure=insecure, poll=poll, say=typer.echo)
    except SystemExit as end:
        if end.code:
            try_again(typer.echo)
        raise


@app.command()
def up(
    folder: Path = typer.Argument(Path(), help="An app of shoal flower new (default: here)."),
    nodes: int = typer.Option(5, min=0, help="Members to start on this machine (0: none)."),
    out: Path | None = typer.Option(
        None, "-o", "--out", help="Keys, logs and the run go here (default: FOLDER-up)."
    ),
    rounds: int | None = typer.Option(None, min=1, help="Rounds (default: what the app says)."),
    changes: list[str] = typer.Option(
        [], "--set", metavar="KEY=VALUE", help="Change a setting of the app: --set deadline=30"
    ),
    host: str = typer.Option("127.0.0.1", help="Address on which members are let in."),
    port: int = typer.Option(0, help="Port for members, and for nothing else (0: a free one)."),
    names: list[str] = typer.Option([], "--name", help="Host names for the certificate."),
    insecure: bool = typer.Option(False, "--insecure", help=INSECURE),
) -> None:
    """Start a federation here: SuperLink, server app and members as real processes."""
    _needs_flower()
    from shoal.flower.apps import agreement_of
    from shoal.flower.operations.supervisor import start_federation
    from shoal.flower.operations.up import FederationFolder, UpOptions, free_port

    agreement_of(folder)
    # beside the app, not in it: Flower sends what is in the app to the SuperLink
    place = FederationFolder(out or folder.resolve().with_name(f"{folder.resolve().name}-up"))
    if place.settings.exists():
        raise UserError(f"{place.path} is in use; go on with: shoal flower resume {place.path}")
    settings = _settings(changes)
    if rounds is not None:
        settings["num-server-rounds"] = rounds
    if nodes:
        settings.setdefault("start-members", nodes)
    wanted = UpOptions(str(folder.resolve()), nodes, host, port or free_port(), insecure, settings)
    hosts = [*names, *([host] if host not in ("0.0.0.0", "::") else [])]
    try:
        start_federation(place, wanted, hosts, typer.echo)
    except KeyboardInterrupt:
        typer.echo(f"Stopped. Go on with: shoal flower resume {place.path}")
        raise typer.Exit(130) from None
    status(place.path)


def _settings(changes: list[str]) -> dict[str, Any]:
    import yaml

    from shoal.config.read import parsed
    from shoal.flower.agreement import rules_from

    found: dict[str, Any] = {}
    for change in changes:
        name, sign, value = change.partition("=")
        if not sign:
            raise UserError(f"--set {change}: write KEY=VALUE")
        try:
            found[name] = parsed(value, yaml.SafeLoader)
        except yaml.YAMLError as error:
            raise UserError(f"--set {change}: {' '.join(str(error).split())}") from None
    rules_from(found)
    return found


@app.command()
def resume(
    place: Path = typer.Argument(help="The directory of shoal flower up."),
) -> None:
    """Go on after a server, a SuperLink or everything was stopped."""
    _needs_flower()
    from shoal.flower.operations.supervisor import resume_federation as go_on
    from shoal.flower.operations.up import FederationFolder

    go_on(FederationFolder(place), typer.echo)
    if FederationFolder(place).finished:
        status(place)


@app.command()
def status(
    place: Path = typer.Argument(help="The directory of shoal flower up."),
) -> None:
    """Where a federation stands, and how its members behave."""
    _needs_flower()
    from shoal.flower.operations.supervisor import status_table
    from shoal.flower.operations.up import FederationFolder

    for line in status_table(FederationFolder(place)):
        typer.echo(line)
