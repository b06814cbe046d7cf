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
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple, TypeVar

from shoal.core.errors import UserError, suggestion

T = TypeVar("T")
INSTALLED = frozenset({"site-packages", "dist-packages"})  # wherever these folders are
MAIN = ("__main__", "__mp_main__")  # a script, and in a process that multiprocessing spawned
_FORM = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*")


class CodeSource(NamedTuple):
    """Where a module comes from (the file, or the folder of the package that it is in), and the
    digest of that. Nothing of it has been run to know this."""

    module: str
    file: Path | None
    digest: str


@dataclass
class Known:
    """What this process knows of code of the user's, beside ``sys.modules`` and ``sys.path``."""

    told: set[str] = field(default_factory=set)  # modules that it, or who started it, has named
    digests: dict[str, tuple[ModuleSpec | None, str]] = field(default_factory=dict)  # as imported
    given: dict[str, Callable[..., Any]] = field(default_factory=dict)  # objects of a script
    resolved: dict[str, Callable[..., Any]] = field(default_factory=dict)
    importing: list[str] = field(default_factory=list)
    first: set[str] = field(default_factory=set)  # modules of --import
    folders: list[str] = field(default_factory=list)  # that the user pointed at


_known = Known()


def is_own(name: str) -> bool:
    """Whether a name in a config is ``module:name``.

    >>> is_own("mymodels:Net"), is_own("my.losses:focal"), is_own("mlp")
    (True, True, False)
    """
    return _FORM.fullmatch(name) is not None or name in _known.given


def is_in_a_file(name: str) -> bool:
    """Whether another process, too, finds what ``module:name`` means."""
    return _FORM.fullmatch(name) is not None and name.partition(":")[0] not in MAIN


def look_in(*folders: str | Path) -> None:
    """Modules are looked for in these folders too, after all others."""
    for folder in folders:
        path = str(Path(folder).resolve())
        for known in (_known.folders, sys.path):
            if path not in known:
                known.append(path)


@contextmanager
def looking() -> Iterator[None]:
    """Folders that are pointed at inside count inside only."""
    folders, path = list(_known.folders), list(sys.path)
    try:
        yield
    finally:
        _known.folders, sys.path[:] = folders, path


def resolve(key: str, name: str, makes: type | None = None) -> Callable[..., Any]:
    """What ``module:name`` means; ``key`` is the config's, for the sentence when it means nothing.

    A function of an installed package is called only if its annotation says that it returns
    ``makes``, and a class only if it is one: a config from elsewhere must not call what it likes.

    >>> resolve("evaluate.metrics", "math:fsum").__name__
    'fsum'
    """
    if name in _known.given:
        return _known.given[name]
    if not is_own(name):
        raise UserError(f"{key}: {name!r} is no name of code; write it as module:name")
    module, _, attribute = name.partition(":")
    loaded = import_module(key, module)
    if not hasattr(loaded, attribute):
        public = [k for k, v in vars(loaded).items() if callable(v) and not k.startswith("_")]
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
    _known.resolved[name] = made
    return made


def again(key: str, name: str) -> Callable[..., Any]:
    """What :func:`resolve` found before: files that are edited while a run plays change nothing."""
    return _known.resolved[name] if name in _known.resolved else resolve(key, name)


def named(key: str, found: Callable[..., Any], *, by_name: bool = False) -> str:
    """What a config calls a function or class that a script hands over as an object.

    ``by_name``: it will be imported under that name, by a process that goes on with the run too;
    else the name means this object as long as the process lives.
    """
    if not hasattr(found, "__qualname__"):
        raise UserError(f"{key}: {found!r} must be a function or a class, or their module:name")
    module = found.__module__
    main = sys.modules.get("__main__")
    if module in MAIN and (file := getattr(main, "__file__", None)):
        spec = getattr(main, "__spec__", None)  # of ``python -m``
        module = spec.name if spec is not None else Path(file).stem
    name = f"{module}:{found.__qualname__}"
    if not by_name:
        _known.given[name] = found
        return name
    _known.given.pop(name, None)
    if not is_in_a_file(name):
        raise UserError(
            f"{key}: {found.__qualname__} must stand at the top of a file of its own, where a run "
            "that is resumed finds it again"
        )
    return name


def is_importing() -> bool:
    """Whether a module of the user's is being imported now, in this process."""
    return bool(_known.importing)


def called(key: str, name: str, function: Callable[..., Any], makes: type[T], **given: Any) -> T:
    """What a function of the user's makes of keyword arguments, if it takes them and it does."""
    file = _written_in(function)
    try:
        signature = inspect.signature(function)
        signature.bind(**given)
    except (TypeError, ValueError) as error:
        takes = f"takes {signature}" if isinstance(error, TypeError) else "cannot be called"
        raise UserError(f"{key}: {name!r} {takes}: {error}") from None
    try:
        made = function(**given)
    except UserError:
        raise
    except Exception as error:
        raise UserError(f"{key}: {name!r} fails ({_reason(error, file)})") from error
    if not isinstance(made, makes):
        raise UserError(f"{key}: {name!r} must make a {makes.__name__}, and makes a "
                        f"{type(made).__name__}")  # fmt: skip
    return made


def import_module(key: str, module: str) -> ModuleType:
    """The module, imported after its file has been told."""
    source = source_of(key, module)
    tell(source)
    _known.importing.append(module)
    try:
        loaded = importlib.import_module(module)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # a module may also end the program
        raise UserError(
            f"{key}: module {module!r} cannot be imported ({_reason(error, source.file)})"
        ) from error
    finally:
        _known.importing.pop()
    spec = sys.modules[source.module].__spec__
    if source.module not in _known.digests or _known.digests[source.module][0] is not spec:
        _known.digests[source.module] = (spec, source.digest)
    if _known.digests[source.module][1] != source.digest:
        raise UserError(
            f"{key}: {source.file} was changed after this process had imported it; start Python "
            "anew (or importlib.reload the module)"
        )
    return loaded


def source_of(key: str, module: str) -> CodeSource:
    """Where a module is, without running anything of it."""
    importlib.invalidate_caches()  # it may have been written a moment ago
    top = module.partition(".")[0]
    if top in MAIN:
        raise UserError(f"{key}: {top} is whatever runs; write the name of its file")
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
        return CodeSource(top, place, _digest(place) if _is_users(place) else _lasting(place))
    if any(specs):
        return CodeSource(top, None, "")  # built into Python
    where = "".join(f", nor in {folder}" for folder in _known.folders)
    hint = "; point at its folder with --import FOLDER" if where else " here"
    raise UserError(f"{key}: module {top!r} is not installed{where}{hint}")


def tell(source: CodeSource) -> None:
    """Name a file that is about to run, once in a process; Python's own need not be named."""
    python_s = source.file is None or source.module in sys.stdlib_module_names
    if source.module not in _known.told and not python_s:
        _known.told.add(source.module)
        print(f"shoal: runs code of {source.module} ({source.file})", file=sys.stderr)


def told() -> list[str]:
    """Modules that were named; a process that this one starts need not name them again."""
    return sorted(_known.told)


def imported_first() -> list[str]:
    """Modules that ``--import`` named: what they register counts in other processes too."""
    return sorted(_known.first)


def import_first(module: str) -> None:
    """Import a module that the user named, for what it registers."""
    import_module("--import", module)
    _known.first.add(module)


def adopt(path: Iterable[str], modules: Iterable[str], first: Iterable[str]) -> None:
    """In a process that another has started: its ``sys.path``, :func:`told` and
    :func:`imported_first`."""
    sys.path += [folder for folder in path if folder not in sys.path]
    _known.told.update(modules)
    for module in first:
        import_first(module)


def is_users(module: ModuleType) -> bool:
    """Whether a module is neither Python's nor installed."""
    file = file_of(module)
    return file is not None and _is_users(file)


def travels(name: str, module: ModuleType) -> bool:
    """Whether another machine may lack a module of this name, so that its code has to go along: the
    user's own, but for what is typed at a prompt or in a script, which travels by itself."""
    file, package = file_of(module), name.partition(".")[0]
    return file is not None and package not in (*MAIN, "shoal") and _is_users(file)


def file_of(module: ModuleType) -> Path | None:
    """The file of a module that was imported; None for one that is built in."""
    try:
        found = inspect.getsourcefile(module)
    except TypeError:
        return None
    return Path(found) if found and Path(found).exists() else None


def file_of_name(module: str) -> Path | None:
    """The file of a module by its dotted name, without importing anything; None if it is not found
    so."""
    top, *inner = module.split(".")
    spec = _spec(top)
    place = None if spec is None else _place(spec)
    if place is None or not inner:
        return place if place is None or place.is_file() else place / "__init__.py"
    path = place.joinpath(*inner)
    return next((f for f in (path.with_suffix(".py"), path / "__init__.py") if f.exists()), None)


def _is_users(file: Path) -> bool:
    if not INSTALLED.isdisjoint(file.parts):  # a user's site, or that of the Python below
        return False
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


_lasting = cache(_digest)  # what is installed stays while a process lives, and may be large


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


def _written_in(function: Callable[..., Any]) -> Path | None:
    try:
        return Path(inspect.getsourcefile(function) or "")
    except TypeError:  # built in
        return None


def _reason(error: BaseException, place: Path | None) -> str:
    """What went wrong, and in which line of the user's files."""
    what = " ".join(f"{type(error).__name__}: {error}".split())
    if isinstance(error, SyntaxError) or place is None:
        return what  # it says where by itself
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if Path(frame.filename).is_relative_to(place)]
    return f"{what}, in {Path(own[-1].filename).name}, line {own[-1].lineno}" if own else what
