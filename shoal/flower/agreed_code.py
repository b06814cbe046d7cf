"""Code of a user's that members agree to: its digests stand in ``federation.yaml``.

A node imports only what its owner has installed (or put on ``PYTHONPATH``), and only if it is the
agreed code. What comes with the agreement or lies in the working directory is not imported.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from shoal.config import Config
from shoal.config.own_names import own_names
from shoal.core.errors import UserError
from shoal.core.own_code import CodeSource, is_own, source_of


def agreed_code(config: Config) -> dict[str, str]:
    """Digests by module of what a config names beside its data, which every member brings."""
    return {source.module: source.digest for _, source in _sources(config)}


def check_installed(agreement: Path, config: Config, code: Mapping[str, str]) -> None:
    """Before any of it is imported: it is installed here, and the one that was agreed to."""
    beside = [Path.cwd(), agreement.parent, agreement.parent.parent]
    for key, source in _sources(config):
        if source.module not in code:
            raise UserError(f"{agreement}: {key} names code of {source.module!r}, and has no "
                            "digest of it; make the agreement with shoal flower new")  # fmt: skip
        if source.file is not None and source.file.parent in [f.resolve() for f in beside]:
            raise UserError(f"{key}: {source.file} came with the agreement or lies in the working "
                            "directory; a member runs only code that it has installed")  # fmt: skip
        if source.digest != code[source.module]:
            raise UserError(
                f"{key}: {source.file} has the digest {source.digest[:12]}, and members agreed to "
                f"{code[source.module][:12]}; install the version that was agreed to"
            )


def code_from(values: Any) -> dict[str, str]:
    """``code`` of an agreement: digests by module."""
    fine = isinstance(values, Mapping) and all(
        isinstance(part, str) for pair in values.items() for part in pair
    )
    if not fine:
        raise UserError("code must be a mapping of modules to their SHA-256 digests")
    return dict(values)


def _sources(config: Config) -> Iterator[tuple[str, CodeSource]]:
    for key, name in own_names(config):
        if key != "data" and is_own(name):
            yield key, source_of(key, name.partition(":")[0])
