"""The one exception whose message is meant for the person at the keyboard."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from difflib import get_close_matches


class UserError(Exception):
    """Bad input: one sentence that says what is wrong, where, and what would be right.

    The command line prints it without a traceback and exits with code 2.
    """

    key = ""  # the key of the config that it is about, where that is known


class MissingDataError(UserError):
    """A data set that is not on this machine and cannot be fetched now."""


class LostMachinesError(UserError):
    """Those who compute are gone, or never came; what was played so far is kept."""


@contextmanager
def concerning(key: str) -> Iterator[None]:
    """Bad input that is found inside is about this key of a config.

    >>> try:
    ...     with concerning("data"):
    ...         raise UserError("unknown data set")
    ... except UserError as error:
    ...     error.key
    'data'
    """
    try:
        yield
    except UserError as error:
        error.key = error.key or key
        raise


def shown(text: object, most: int | None = None) -> str:
    r"""Text from elsewhere as a terminal may have it: what is not printable is written out, so that
    no name moves the cursor, changes colours or fakes a line.

    >>> print(shown("eve\x1b[2J\u202e"))
    eve\x1b[2J\u202e
    >>> shown("abcdef", most=4)
    'abcd...'
    """
    whole = str(text)
    kept = whole if most is None or len(whole) <= most else f"{whole[:most]}..."
    if kept.isprintable():
        return kept
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in kept)


def suggestion(name: object, known: Iterable[str]) -> str:
    """The nearest right name, or all of them when none is near.

    >>> suggestion("digts", ["digits", "mnist"])
    "did you mean 'digits'?"
    >>> suggestion("zzz", ["digits", "mnist"])
    'known are digits, mnist'
    """
    names = list(known)
    near = get_close_matches(str(name), names, n=1, cutoff=0.4)
    if near:
        return f"did you mean {near[0]!r}?"
    return f"known are {', '.join(names)}" if names else "it takes none"
