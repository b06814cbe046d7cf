"""Files of clients' memories: written once, never changed, gone when nobody points at them.

A file is written under another name, synced and renamed, so a file with the right name is whole.
Nothing but this process points into it; a checkpoint takes a hard link of its own. What a killed
run leaves behind is therefore never read: whoever comes next empties the folder first.
"""

from __future__ import annotations

import hashlib
import shutil
import tempfile
import weakref
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import count
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save
from torch import Tensor

from shoal import tree
from shoal.durable import write_bytes
from shoal.states import freeze
from shoal.tree import Tree

Memories = tuple[Tree, ...]
_SERIALS = count()  # no two files of a process share a name, so what is open is never mistaken


@dataclass(frozen=True, eq=False)
class Form:
    """What memories of one kind look like: a tree of places, and bytes and device of each place."""

    places: Memories  # numbers 0, 1, ... where tensors are
    sizes: tuple[int, ...]
    device: str

    def without(self, part: int) -> Form:
        """The same with one part's memory forgotten; the others keep their places."""
        return Form((*self.places[:part], None, *self.places[part + 1 :]), self.sizes, self.device)

    @property
    def nbytes(self) -> int:
        return sum(self.sizes[place] for place in tree.leaves(self.places))


_FORMS: dict[tuple[str, tuple[int, ...], str], Form] = {}


def form_of(memories: Memories) -> Form:
    """One object for all clients whose memories look the same."""
    found = tree.leaves(memories)
    device = str(found[0].device) if found else "cpu"
    sizes = tuple(t.numel() * t.element_size() for t in found)
    kind = str(freeze(memories, lambda _: "*", name=repr))  # equal tuples of two types are two
    key = (kind, sizes, device)
    if key not in _FORMS:
        _FORMS[key] = Form(tree.rebuild(memories, range(len(found))), sizes, device)
    return _FORMS[key]


class SpillFile:
    """One file; it is removed with the last reference to this object."""

    __slots__ = ("__weakref__", "nbytes", "path", "serial", "sha256")

    def __init__(self, path: Path, serial: int, content: bytes, nbytes: int) -> None:
        write_bytes(path, content)
        self.path, self.serial, self.nbytes = path, serial, nbytes  # bytes of tensors alone
        self.sha256 = hashlib.sha256(content).hexdigest()
        weakref.finalize(self, _remove, path)

    def tensor(self, number: int) -> Tensor:
        """A tensor of its own: nothing of the file stays mapped behind it."""
        found: Tensor = _opened(self.path).get_tensor(name_of(self.serial, number))
        return found.clone()


class Spilled:
    """Where one client's memories are: tensors from number ``first`` on, as ``form`` says."""

    __slots__ = ("file", "first", "form")

    def __init__(self, file: SpillFile, first: int, form: Form) -> None:
        self.file, self.first, self.form = file, first, form

    def load(self) -> Memories:
        read = lambda place: self.file.tensor(self.first + place).to(self.form.device)  # noqa: E731
        return tuple(tree.apply(read, memory) for memory in self.form.places)

    def without(self, part: int) -> Spilled:
        return Spilled(self.file, self.first, self.form.without(part))

    def names(self) -> Iterator[str]:
        """What the tensors are called in the file, left to right."""
        for place in tree.leaves(self.form.places):
            yield name_of(self.file.serial, self.first + int(place))

    def outline(self) -> Memories:
        """The tree with an empty tensor in every place."""
        empty = torch.empty(0)
        return tuple(tree.apply(lambda _: empty, memory) for memory in self.form.places)


class Folder:
    """Where a store and its copies write files; made with the first of them."""

    def __init__(self, path: Path | None = None) -> None:
        self._path = path
        if path is not None:
            shutil.rmtree(path, ignore_errors=True)  # what a killed run has left

    def write(self, many: Iterable[Memories]) -> list[Spilled]:
        """One file with the memories of several clients."""
        serial = next(_SERIALS)
        held: dict[str, Tensor] = {}
        firsts: list[tuple[int, Form]] = []
        for memories in many:
            firsts.append((len(held), form_of(memories)))
            for leaf in tree.leaves(memories):
                held[name_of(serial, len(held))] = leaf.detach().cpu().contiguous().clone()
        path = self._made() / f"memories-{serial:08d}.safetensors"
        nbytes = sum(sum(form.sizes) for _, form in firsts)
        file = SpillFile(path, serial, save(held), nbytes)
        return [Spilled(file, first, form) for first, form in firsts]

    def _made(self) -> Path:
        if self._path is None:
            self._path = Path(tempfile.mkdtemp(prefix="shoal-memories-"))
            weakref.finalize(self, shutil.rmtree, self._path, ignore_errors=True)
        self._path.mkdir(parents=True, exist_ok=True)
        return self._path


def name_of(serial: int, number: int) -> str:
    return f"m{serial:08d}.{number:07d}"


@lru_cache(maxsize=16)
def _opened(path: Path) -> Any:
    return safe_open(path, framework="pt")


def _remove(path: Path) -> None:
    path.unlink(missing_ok=True)
