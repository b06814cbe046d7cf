"""``shoal flower up`` and ``resume``: a federation from its start, or where it was, to its end."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from shoal.errors import UserError
from shoal.flower.keeper import Keeper
from shoal.flower.layout import Place, Up, read_up
from shoal.flower.up import Federation, prepare
from shoal.lock import end_holder, holder

ANSWER_SECONDS = 5.0  # for a SuperLink that may be running
Say = Callable[[str], None]


def bring_up(place: Place, up: Up, hosts: Sequence[str], say: Say) -> None:
    """Everything from the start (or, in an old directory, from where it was) to the last round."""
    prepare(place, up, hosts)
    up.write(place)
    with Federation(place, up, say) as federation:
        federation.start_superlink()
        for index in range(up.nodes):
            federation.start_node(index)
        Keeper(federation, say).watch()


def resume(place: Place, say: Say) -> None:
    """Go on: start the server app again, and whatever else is not there any more."""
    up = read_up(place)
    if place.finished:
        raise UserError(f"{place.path} is finished; there is nothing to resume")
    federation = Federation(place, up, say)
    try:
        federation.link.wait(ANSWER_SECONDS)
    except UserError:
        say(f"no SuperLink answers at {up.address}; starting everything again")
        end_holder(place.lock)
        bring_up(place, up, (), say)
        return
    process = holder(place.lock)
    if process is not None:
        raise UserError(f"the server of {place.path} is running (process {process}); there is "
                        "nothing to resume")  # fmt: skip
    number = federation.start_run()
    say(f"the server app was started again as run {number}; it goes on from its checkpoint")
