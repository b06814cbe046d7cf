"""The server of a real federation: wait for members, play a round, write it down, go on.

A round is :func:`shoal.round.play_round`, the same as in a simulation; this file is about what a
simulation does not have: members that come, fall silent or lie, a server that is restarted, and a
model that turns bad.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from flwr.serverapp import Grid

from shoal import checkpoint
from shoal.durable import private_folder
from shoal.errors import UserError
from shoal.federation import Federation, Settings
from shoal.flower.agreement import Agreement, Bounds, Rules
from shoal.flower.operations.up import LOCK
from shoal.flower.privacy import Account, Privacy, account_lines
from shoal.flower.server.engine import GridEngine, NoAnswerError
from shoal.flower.server.members import MemberRegistry, OnlineMembers
from shoal.flower.server.record import EventLog, RunRecord
from shoal.flower.server.screening import PretendMember, ReplyScreen
from shoal.flower.server.sessions import LiveWorld, RollbackRule, SessionTracker
from shoal.flower.server.transport import Transport
from shoal.flower.wire import state_types
from shoal.lock import hold
from shoal.orders import make_order
from shoal.round import RoundReport, play_round
from shoal.types import Job
from shoal.worlds.base import Moment

MAX_FAILED_ATTEMPTS = 20  # attempts at one round, with members here, before the server gives up
REMIND_SECONDS = 60.0  # seconds between two lines that say we wait


@dataclass
class Server:
    """A federation over a grid, and the directory it lives in."""

    grid: Grid
    agreement: Agreement
    rules: Rules
    folder: Path
    say: Callable[[str], None] = print
    sleep: Callable[[float], None] = time.sleep

    def __post_init__(self) -> None:
        private_folder(self.folder)
        self._lock = hold(self.folder / LOCK)
        self.world = LiveWorld(self.rules.num_server_rounds, self.folder / "sessions.json")
        self.plan = self.agreement.plan(self.world)
        self.settings: Settings = replace(self.plan.settings, world=self.world, elsewhere=True)
        saved = checkpoint.load(self.folder / "checkpoint", {self.agreement.digest}, "cpu")
        self.record = RunRecord(self.folder, self.agreement, self.rules, saved)
        self.log = EventLog(self.folder, self.say)
        self.federation = saved.federation if saved else self._fresh()
        self.sessions = SessionTracker(self.rules.settle)
        self._begins = False  # a session whose first round was not finished yet
        self.rollback = RollbackRule(self.rules.rollback)
        initial = self.federation.initial
        size = sum(t.numel() * t.element_size() for t in initial)
        types = state_types(self.settings.method)
        secure = self.agreement.sums
        size *= 1 if secure is None else 2  # masked numbers have 64 bits
        self.transport = Transport(self.grid, self.rules, self.log, types, size)
        roster = MemberRegistry(self.folder / "roster.json")
        limits = (self.agreement.bounds or Bounds()).filled(initial.theta, self.agreement.privacy)
        fence = ReplyScreen(
            limits,
            self.rules.norm_factor,
            lambda member: self.online.rows(member),
            PretendMember(self.agreement.expects),
            secure is not None,
        )
        self.online = OnlineMembers(
            self.transport, roster, self.rules, fence.card, self.agreement.digest, initial.theta
        )
        self.engine = GridEngine(self.transport, self.online.where, fence, secure=secure)
        self.engine.needed = lambda cohort: self.settings.guard.needed(cohort)
        self.account: Account | None = None
        if self.agreement.privacy is not None:
            self._protect(self.agreement.privacy)
        if secure is not None:
            self._need(secure.at_least)
        if saved:
            self._resumed()

    def _protect(self, privacy: Privacy) -> None:
        """Uploads weigh the same, and a round has as many of them as the noise counts on."""
        guard = replace(self.settings.guard, quorum=privacy.shared_by)
        self.settings = replace(self.settings, guard=guard, uniform=True)
        self._need(privacy.shared_by)
        alone = self.agreement.secure is None
        account = self.account = Account(privacy, self.folder / "releases.json", alone)
        self.engine.released = account.release
        self._say_privacy(account)

    def _say_privacy(self, account: Account) -> None:
        """What the rounds that are left will cost, before the first of them."""
        left = max(0, self.rules.num_server_rounds - self.federation.round)
        for text in account_lines(account.after(left)):
            self.log.event("privacy", f"at the end, if no round is repeated: {text}")

    def _need(self, members: int) -> None:
        """Rounds only with so many members."""
        needed = max(members, self.rules.min_members)
        start = max(needed, self.rules.start_members)
        self.rules = replace(self.rules, min_members=needed, start_members=start)

    def _fresh(self) -> Federation:
        first = self.world.at(0)
        rate = self.settings.rates(first)[0]
        return Federation.fresh(self.settings, self.plan.initial, first, rate)

    def _resumed(self) -> None:
        done = self.federation.round
        if done and done - 1 < self.rules.num_server_rounds:
            self.sessions.current = frozenset(self.world.at(done - 1).members)
        self.log.event("resumed", f"the server goes on after round {done - 1}", round=done)

    # ---- the loop ----
    def play(self) -> None:
        """All rounds that are left. Whatever stops it, the directory can be resumed."""
        fruitless = 0
        try:
            while self.federation.round < self.rules.num_server_rounds:
                self.transport.round = self.federation.round
                moment = self._opened()
                if self._play_round(moment):
                    fruitless = 0
                    continue
                fruitless += 1
                if fruitless == MAX_FAILED_ATTEMPTS:
                    raise UserError(f"round {moment.round} failed {MAX_FAILED_ATTEMPTS} times; see "
                                    f"{self.folder / 'events.jsonl'}")  # fmt: skip
                self.sleep(min(self.rules.poll, 1.0))
            self._finish()
        finally:
            self.log.write()
            self.record.close()
            self._lock.close()

    def _opened(self) -> Moment:
        """The next moment, once enough members are here."""
        round = self.federation.round
        here = self._wait(self.rules.min_members if round else self.rules.start_members)
        members, new = self.sessions.members_of_round(here)
        self.world.sizes = {m: card.rows for m, card in self.online.cards.items()}
        self._begins = self._begins or new
        moment = self.world.open(round, members, self._begins)
        if new:
            self.rollback.forget()
            names = ", ".join(self.log.name(m) for m in members)
            text = f"round {round}: session {moment.session} begins with {names}"
            self.log.event("session", text, round=round, members=list(members))
        return moment

    def _wait(self, needed: int) -> tuple[int, ...]:
        """Members, when there are enough; until then the server sleeps and says so now and then."""
        told, pause, came_back = -REMIND_SECONDS, 0.1, self._expected()
        patience = time.monotonic() + min(self.rules.deadline, 30.0)
        while True:
            here = self.online.look()
            missing = came_back - set(here) if time.monotonic() < patience else set()
            if len(here) >= needed and not missing:
                return here
            if len(here) < needed and time.monotonic() - told >= REMIND_SECONDS:
                told = time.monotonic()
                text = f"waiting for members: {len(here)} of at least {needed} are here"
                self.log.event("waiting", text)
            self.sleep(pause)
            pause = min(2 * pause, 5.0)

    def _expected(self) -> set[int]:
        """Right after a restart: the members of the round before, who have a moment to report."""
        fresh_start = not self.online.here and bool(self.federation.round)
        return set(self.sessions.current) if fresh_start else set()

    # ---- one round ----
    def _play_round(self, moment: Moment) -> bool:
        """Whether the round counted. If not, the federation is as before."""
        began, before = time.perf_counter(), self.federation
        trial = before.snapshot()
        self.engine.federation = lambda: trial
        self.engine.scores.clear()
        self.transport.heard.clear()
        self.transport.unheard.clear()
        round = moment.round
        try:
            earlier = self.world.at(round - 1) if round else None
            report = play_round(trial, self.settings, moment, self.engine, earlier)
        except NoAnswerError as error:
            self._attend()
            self._without(error)
            names = ", ".join(self.log.name(m) for m in sorted(error.members))
            text = f"round {round}: no answer from {names}; trying again without them"
            self.log.event("silent", text, round=round)
            return False
        self._attend()
        self._count(report, round)
        if report.abandoned:
            text = f"round {round}: too few uploads were accepted; trying again"
            self.log.event("abandoned", text, round=round, attempts=report.attempts)
            return False
        self._begins = False
        trial.round = round + 1
        self.federation = self._judged(before, trial)
        seconds = time.perf_counter() - began
        line = self.record.write(moment, report, self, seconds)
        self.say(line)
        return True

    def _attend(self) -> None:
        self.online.heard(tuple(self.transport.heard))
        self.online.missed(tuple(self.transport.unheard - self.transport.heard))

    def _without(self, error: NoAnswerError) -> None:
        """Whose answers are refused is asked no more: a question needs an answer of everybody.

        Where most are refused it is not they who are wrong, and nobody is sent away.
        """
        refused = error.members & self.transport.heard
        if 2 * len(refused) <= error.asked:
            self.online.missed(
                sorted(refused), "gave no answer that could be used, and counts as gone until its "
                "node starts anew")  # fmt: skip

    def _count(self, report: RoundReport, round: int) -> None:
        for member in report.accepted:
            self.log.count(member, "accepted")
        for refused in report.rejected:
            self.log.refused(refused.client, refused.reason, round)

    def _judged(self, before: Federation, after: Federation) -> Federation:
        """The new state, or the last good one if members say that the model went bad."""
        good = self.rollback.good
        worse = self.rollback.judge(before, dict(self.engine.scores), self._judges)
        if worse is None or good is None:
            return after
        self.record.keep_model(self.settings.task, before, f"round-{before.round:04d}-dropped")
        self.record.keep_model(
            self.settings.task, good.federation, f"round-{good.federation.round:04d}-good"
        )
        text = (
            f"round {before.round}: members find the model worse by {worse:.3f} than after round "
            f"{good.federation.round - 1}; going back to that one (both are in models/)"
        )
        self.log.event("rollback", text, round=before.round, to=good.federation.round)
        back = good.federation.snapshot()
        back.round = after.round
        return back

    def _judges(self, member: int) -> int:
        card = self.online.cards.get(member)
        return 0 if card is None else card.validation

    def _finish(self) -> None:
        """The last model, judged once more by whoever is here."""
        members = tuple(sorted(self.online.here))
        moment = self.world.at(self.rules.num_server_rounds - 1)
        jobs = [Job(member) for member in members]
        order = make_order(self.federation, self.settings, moment, 0, jobs)
        scores = self.engine.score(order) if members and self.account is None else {}
        self.log.write()
        self.record.finish(self, scores)
