"""Code of the user's is found where it may come from, and nothing of it runs unsaid."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from torch import nn

from shoal.core.errors import UserError
from shoal.core.own_code import is_users, look_in, looking, resolve, source_of

Write = Callable[..., Path]


@pytest.fixture
def write(own_folder: Any) -> Write:
    """Writes modules into a folder that is looked in."""
    look_in(own_folder.path)
    written: Write = own_folder.write
    return written


def test_a_file_is_named_before_it_runs(write: Write, capfd: pytest.CaptureFixture[str]) -> None:
    path = write("ours_a.py", "import sys\nprint('ran', file=sys.stderr)\ndef f(): return 7\n")
    assert resolve("loss", "ours_a:f")() == 7
    resolve("loss", "ours_a:f")
    assert capfd.readouterr().err == f"shoal: runs code of ours_a ({path})\nran\n"


def test_the_digest_is_of_the_file_and_of_a_package_s_files(write: Write) -> None:
    path = write("ours_b.py", "raise SystemExit('it ran')")
    assert source_of("x", "ours_b").digest == hashlib.sha256(path.read_bytes()).hexdigest()
    write("pack/__init__.py", "")
    inner = write("pack/deep/nets.py", "raise SystemExit('it ran')")
    first = source_of("x", "pack.deep.nets")
    assert first.file == inner.parents[1]
    inner.write_text("other")
    assert source_of("x", "pack.deep.nets").digest != first.digest
    assert "pack" not in sys.modules, "nothing runs to know where it is"


@pytest.mark.parametrize(
    ("name", "text", "sentence"),
    [
        ("mods:f", "", "module 'mods' has no 'f'"),
        ("mods:floss", "def gloss(): ...", "has no 'floss'; did you mean 'gloss'?"),
        ("mods:f", "f = 3", "'mods:f' is no function and no class"),
        ("mods:f", "a = 1\nimport no_such_thing\n", "No module named 'no_such_thing', in mods.py, "
         "line 2)"),
        ("mods:f", "def f(:\n", "SyntaxError"),
        ("mods:f", "raise SystemExit(3)", "(SystemExit: 3, in mods.py, line 1)"),
        ("elsewhere:f", "", "module 'elsewhere' is not installed, nor in"),
        ("mods", "", "'mods' is no name of code; write it as module:name"),
        ("mods:a.b", "", "is no name of code"),
        ("shoal.core.files:write_text", "", "without a module"),
        ("__main__:f", "", "write the name of its file"),
    ],
)  # fmt: skip
def test_what_cannot_be_had_is_one_sentence(
    write: Write, name: str, text: str, sentence: str
) -> None:
    write("mods.py", text)
    with pytest.raises(UserError) as caught:
        resolve("loss", name)
    assert sentence in str(caught.value) and str(caught.value).startswith("loss: ")
    assert "\n" not in str(caught.value)


def test_two_modules_of_a_name_are_refused_and_so_is_an_installed_one_s_twin(
    write: Write, tmp_path: Path
) -> None:
    write("twin.py", "def f(): ...")
    write("other/twin.py", "def f(): ...")
    resolve("loss", "twin:f")
    look_in(tmp_path / "own" / "other")
    with pytest.raises(UserError, match="there are two modules 'twin'"):
        resolve("loss", "twin:f")
    write("yaml.py", "raise SystemExit('it ran')")
    with pytest.raises(UserError, match="there are two modules 'yaml'"):
        resolve("loss", "yaml:safe_load")


def test_a_file_that_was_edited_since_it_was_imported_is_not_passed_off_as_it_is_now(
    write: Write,
) -> None:
    path = write("edited.py", "def f(): return 1")
    resolve("loss", "edited:f")
    path.write_text("def f(): return 2")
    with pytest.raises(UserError, match="was changed after this process had imported it"):
        resolve("loss", "edited:f")


@pytest.mark.parametrize(
    "name", ["subprocess:run", "torch:load", "torch.nn:Linear", "ours_c:system"]
)
def test_a_config_does_not_call_what_it_likes(write: Write, name: str) -> None:
    """An installed function must say what it makes; the user's own need not."""
    write("ours_c.py", "from os import system\nfrom torch.nn import ReLU\ndef net(): ...\n")
    with pytest.raises(UserError, match="does not say that it makes a Dropout"):
        resolve("model", name, nn.Dropout)
    assert resolve("model", "torch.nn:Linear", nn.Module) is nn.Linear
    assert resolve("model", "ours_c:ReLU", nn.Module) is nn.ReLU
    resolve("model", "ours_c:net", nn.Module)


@pytest.mark.parametrize("folder", ["site-packages", "dist-packages"])
def test_what_is_installed_elsewhere_is_not_the_user_s(folder: str, tmp_path: Path) -> None:
    """In the user's own site, or that of the Python below a virtual environment: its code is not
    followed, module by module, for a digest, and not called unless it says what it makes."""
    where = tmp_path / "lib" / "python3" / folder
    where.mkdir(parents=True)
    name = f"installed_{folder[:4]}"
    (where / f"{name}.py").write_text("def f(): ...\n")
    with looking():
        look_in(where)
        with pytest.raises(UserError, match="does not say that it makes a Module"):
            resolve("model", f"{name}:f", nn.Module)
    assert not is_users(sys.modules[name])
