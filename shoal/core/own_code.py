"""Code of the user's that a config names: found, said, imported; its digest.

``module:name`` in a config is the one exception to the rule that nothing which executes is read
from a file. So a module comes from where Python looks (installed packages, ``PYTHONPATH``, a
script's own folder) and from folders that the user pointed at (the working directory, the config's
folder, ``--import``): see :func:`look_in`. No path that a run directory holds is ever one of them.
The file is told on stderr before it runs.
"""

from __future__ import annotations

import hashlib
import importlib
import inspect
import re
import sys
import sysconfig
import traceback
from collections.abc import Callable, Iterable
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

from shoal.core.errors import UserError, suggestion

_FORM = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*")
_told: set[str] = set()  # modules that this process, or the one that started it, has named
_loaded: dict[str, tuple[ModuleSpec | None, str]] = {}  # digests as they were imported
_folders: list[str] = []  # that the user pointed at


class CodeSource(NamedTuple):
    """Where a module comes from (the file, or the folder of the package that it is in), and the
    digest of that. Nothing of it has been run to know this."""

    module: str
    file: Path | None
    digest: str


def is_own(name: str) -> bool:
    """Whether a name in a config is ``module:name``.

    >>> is_own("mymodels:Net"), is_own("my.losses:focal"), is_own("mlp")
    (True, True, False)
    """
    return _FORM.fullmatch(name) is not None


def look_in(*folders: str | Path) -> None:
    """Modules are looked for in these folders too, after all others."""
    for folder in folders:
        path = str(Path(folder).resolve())
        for known in (_folders, sys.path):
            if path not in known:
                known.append(path)


def resolve(key: str, name: str, makes: type | None = None) -> Callable[..., Any]:
    """What ``module:name`` means; ``key`` is the config's, for the sentence when it means nothing.

    A function of an installed package is called only if its annotation says that it returns
    ``makes``, and a class only if it is one: a config from elsewhere must not call what it likes.

    >>> resolve("evaluate.metrics", "math:fsum").__name__
    'fsum'
    """
    if not is_own(name):
        raise UserError(f"{key}: {name!r} is no name of code; write it as module:name")
    module, _, attribute = name.partition(":")
    loaded = import_module(key, module)
    if not hasattr(loaded, attribute):
        public = [known for known in vars(loaded) if not known.startswith("_")]
        raise UserError(f"{key}: module {module!r} has no {attribute!r}; "
                        f"{suggestion(attribute, public)}")  # fmt: skip
    found = getattr(loaded, attribute)
    if not callable(found):
        raise UserError(f"{key}: {name!r} is no function and no class")
    if makes is not None and not _is_meant(found, makes):
        raise UserError(
            f"{key}: {name!r} does not say that it makes a {makes.__name__}; of an installed "
            f"package only what is annotated so is called, so wrap it in a module of your own"
        )
    made: Callable[..., Any] = found
    return made


def import_module(key: str, module: str) -> ModuleType:
    """The module, imported after its file has been told."""
    source = source_of(key, module)
    if source.module not in _told and source.file is not None:
        _told.add(source.module)
        print(f"shoal: runs code of {source.module} ({source.file})", file=sys.stderr)
    try:
        loaded = importlib.import_module(module)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # a module may also end the program
        raise UserError(
            f"{key}: module {module!r} cannot be imported ({_reason(error, source)})"
        ) from error
    spec = sys.modules[source.module].__spec__
    if source.module not in _loaded or _loaded[source.module][0] is not spec:
        _loaded[source.module] = (spec, source.digest)
    if _loaded[source.module][1] != source.digest:
        raise UserError(
            f"{key}: {source.file} was changed after this process had imported it; start Python "
            "anew (or importlib.reload the module)"
        )
    return loaded


def source_of(key: str, module: str) -> CodeSource:
    """Where a module is, without running anything of it."""
    importlib.invalidate_caches()  # it may have been written a moment ago
    top = module.partition(".")[0]
    if top == "__main__":
        raise UserError(f"{key}: __main__ is whatever runs; write the name of its file")
    if top == "shoal":
        raise UserError(
            f"{key}: what is in shoal has names of its own; write them without a module"
        )
    specs = [_spec(top), *(PathFinder.find_spec(top, [folder]) for folder in sys.path)]
    places = {place: spec for spec in specs if spec and (place := _place(spec))}
    if len(places) > 1:
        first, second = list(places)[:2]
        raise UserError(f"{key}: there are two modules {top!r}, {first} and {second}; give one of "
                        "them another name")  # fmt: skip
    if places:
        place = next(iter(places))
        return CodeSource(top, place, _digest(place))
    if any(specs):
        return CodeSource(top, None, "")  # built into Python
    where = "".join(f" nor in {folder}" for folder in _folders)
    raise UserError(
        f"{key}: module {top!r} is neither installed{where}; put it beside the config, or point at "
        "its folder with --import FOLDER"
    )


def told() -> list[str]:
    """Modules that were named; a process that this one starts need not name them again."""
    return sorted(_told)


def adopt(path: Iterable[str], modules: Iterable[str]) -> None:
    """In a process that another has started: its ``sys.path`` and :func:`told`."""
    sys.path += [folder for folder in path if folder not in sys.path]
    _told.update(modules)


def is_users(module: ModuleType) -> bool:
    """Whether a module is neither Python's nor installed."""
    file = file_of(module)
    return file is not None and _is_users(file)


def file_of(module: ModuleType) -> Path | None:
    """The file of a module that was imported; None for one that is built in."""
    try:
        found = inspect.getsourcefile(module)
    except TypeError:
        return None
    return Path(found) if found and Path(found).exists() else None


def _is_users(file: Path) -> bool:
    paths = [sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")]
    return not any(file.is_relative_to(path) for path in paths)


def _spec(top: str) -> ModuleSpec | None:
    try:
        return find_spec(top)
    except (ValueError, ImportError):  # made by hand, in a notebook say
        return None


def _place(spec: ModuleSpec) -> Path | None:
    """The folder of a package, the file of a module; None for what is built in."""
    if spec.submodule_search_locations:
        return Path(next(iter(spec.submodule_search_locations))).resolve()
    return Path(spec.origin).resolve() if spec.origin and spec.has_location else None


def _digest(place: Path) -> str:
    """Of a file; of a package its Python files in order, with their names."""
    if place.is_file():
        return hashlib.sha256(place.read_bytes()).hexdigest()
    seen = hashlib.sha256()
    for file in sorted(place.rglob("*.py")):
        inner = hashlib.sha256(file.read_bytes()).hexdigest()
        seen.update(f"{file.relative_to(place).as_posix()} {inner}\n".encode())
    return seen.hexdigest()


def _is_meant(found: Callable[..., Any], makes: type) -> bool:
    home = sys.modules.get(getattr(found, "__module__", None) or "")
    if home is not None and is_users(home):
        return True
    if isinstance(found, type):
        return issubclass(found, makes)
    try:
        said = inspect.signature(found, eval_str=True).return_annotation
    except (ValueError, TypeError, NameError):
        return False
    return (
        isinstance(said, type) and said is not inspect.Signature.empty and issubclass(said, makes)
    )


def _reason(error: BaseException, source: CodeSource) -> str:
    """What went wrong, and in which line of the user's files."""
    what = " ".join(f"{type(error).__name__}: {error}".split())
    if isinstance(error, SyntaxError) or source.file is None:
        return what  # it says where by itself
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if Path(frame.filename).is_relative_to(source.file)]
    return f"{what}, in {Path(own[-1].filename).name}, line {own[-1].lineno}" if own else what


__all__ = [
    "CodeSource",
    "adopt",
    "file_of",
    "import_module",
    "is_own",
    "is_users",
    "look_in",
    "resolve",
    "source_of",
    "told",
]
