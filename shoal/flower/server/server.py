"""The server of a real federation: wait for members, play a round, write it down, go on.

Rounds are those of :class:`shoal.runs.player.Player`, the same as in a simulation; this file is
about
what a simulation does not have: members that come, fall silent or lie, a server that is restarted,
and a model that turns bad.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from flwr.serverapp import Grid

from shoal.core.errors import UserError
from shoal.core.files import hold, private_folder
from shoal.core.types import Job
from shoal.core.world_protocol import Moment
from shoal.flower.agreement import Agreement, Bounds, Rules
from shoal.flower.preparation import BYTES, packed_json
from shoal.flower.privacy import Account, account_lines
from shoal.flower.server import screening
from shoal.flower.server.engine import GridEngine, NoAnswerError
from shoal.flower.server.members import MemberRegistry, OnlineMembers
from shoal.flower.server.preparation import FILE, Preparation
from shoal.flower.server.record import LOCK, EventLog, RunRecord
from shoal.flower.server.screening import PretendMember, ReplyScreen
from shoal.flower.server.sessions import LiveWorld, RollbackRule, Scores, SessionTracker, mean_score
from shoal.flower.server.transport import Transport
from shoal.flower.wire import state_types
from shoal.rounds.orders import make_order
from shoal.rounds.play import RoundReport
from shoal.rounds.state import Federation, Round, Settings
from shoal.runs import checkpoint
from shoal.runs.player import Player, Record, RoundFailedError

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
        self.log = EventLog(self.folder, self.say)
        self.world = LiveWorld(self.rules.num_server_rounds, self.folder)
        self.world.named = self.log.names
        self.sessions = SessionTracker(self.rules.stable_rounds)
        self._begins = False  # a session whose first round was not finished yet
        self.rollback = RollbackRule(self.rules.rollback)
        self._scores: Scores = {}
        needed = max(getattr(self.agreement.sums, "at_least", 0), self.rules.min_members)
        asks = self.agreement.asks
        self.transport = Transport(self.grid, self.rules, self.log, BYTES if asks else 0)
        self.online = OnlineMembers(
            self.transport,
            MemberRegistry(self.folder / "roster.json"),
            self.rules,
            partial(screening.card, (self.agreement.bounds or Bounds()).rows),
            self.agreement.digest,
        )
        if asks:
            start = max(needed, self.rules.start_members)
            enough = partial(self._wait, start, frozenset())
            asking = Preparation(self.agreement, self.online, enough, needed)
            self.agreement = asking.of(self.folder)
        agreed, plan = self.agreement, self.agreement.plan(self.world)
        saved = checkpoint.load(self.folder / "checkpoint", {agreed.digest}, "cpu")
        self.record = RunRecord(self.folder, agreed, saved, self.log.names)
        initial = saved.federation.initial if saved else plan.initial
        screen = ReplyScreen(
            (agreed.bounds or Bounds()).filled(initial.theta, agreed.privacy),
            self.rules.norm_factor,
            lambda member: self.online.rows(member),
            PretendMember(agreed.expects),
            agreed.sums is not None,
        )
        method = plan.settings.method
        guard = replace(
            plan.settings.guard,
            bound=lambda results: screen.sizes(method.parts, results),
            tell=lambda gone: self.log.refused(gone.client, gone.reason, self.federation.round),
        )
        settings = replace(plan.settings, guard=guard, clients_are_remote=True)
        if agreed.privacy is not None:
            # uploads weigh the same, and a round has as many of them as the noise counts on
            guard = replace(guard, quorum=agreed.privacy.shared_by)
            settings = replace(settings, guard=guard, uniform=True)
            self._need(agreed.privacy.shared_by)
        if agreed.sums is not None:
            self._need(agreed.sums.at_least)
        size = sum(t.numel() * t.element_size() for t in initial)
        size *= 1 if agreed.sums is None else 2  # masked numbers have 64 bits
        self.transport.fit(state_types(method), size)
        self.transport.rules = self.online.rules = self.rules
        figures = packed_json(json.loads((self.folder / FILE).read_text())) if asks else None
        self.online.begin(initial.theta, figures)
        self.engine = GridEngine(
            self.transport,
            self.online.where,
            screen,
            secure=agreed.sums,
            needed=guard.needed,
        )
        self.player = Player(
            replace(plan, settings=settings),
            saved.federation if saved else None,
            self.engine,
            self._observed,
        )
        self.account: Account | None = None
        if agreed.privacy is not None:
            self.account = Account(
                agreed.privacy, self.folder / "releases.json", agreed.secure is None
            )
            self.engine.released = self.account.release
            self._say_privacy(self.account)
        if saved:
            self._resumed()

    @property
    def federation(self) -> Federation:
        return self.player.federation

    @property
    def settings(self) -> Settings:
        return self.player.settings

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
        needed = self.rules.min_members if round else self.rules.start_members
        here = self._wait(needed, self._expected())
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

    def _wait(self, needed: int, came_back: frozenset[int]) -> tuple[int, ...]:
        """Members, when there are enough; until then the server sleeps and says so now and then."""
        told, pause = -REMIND_SECONDS, 0.1
        patience = time.monotonic() + min(self.rules.deadline, 30.0)
        while True:
            here = self.online.look()
            missing = came_back - set(here) if time.monotonic() < patience else frozenset()
            if len(here) >= needed and not missing:
                return here
            if len(here) < needed and time.monotonic() - told >= REMIND_SECONDS:
                told = time.monotonic()
                text = f"waiting for members: {len(here)} of at least {needed} are here"
                self.log.event("waiting", text)
            self.sleep(pause)
            pause = min(2 * pause, 5.0)

    def _expected(self) -> frozenset[int]:
        """Right after a restart: the members of the round before, who have a moment to report."""
        fresh_start = not self.online.here and bool(self.federation.round)
        return self.sessions.current if fresh_start else frozenset()

    # ---- one round ----
    def _play_round(self, moment: Moment) -> bool:
        """Whether the round counted. If not, the federation is as before."""
        before, round = self.federation, moment.round
        self.engine.scores.clear()
        self.transport.heard.clear()
        self.transport.unheard.clear()
        try:
            record, clients = self.player.play()
        except NoAnswerError as error:
            self._attend()
            self._without(error)
            names = ", ".join(self.log.name(m) for m in sorted(error.members))
            text = f"round {round}: no answer from {names}; trying again without them"
            self.log.event("silent", text, round=round)
            return False
        except RoundFailedError:
            self._attend()
            text = f"round {round}: too few uploads were accepted; trying again"
            self.log.event("abandoned", text, round=round)
            return False
        self._attend()
        for member in record["accepted"]:
            self.log.count(member, "accepted")
        self._begins = False
        self.player.federation = self._judged(before, self.federation)
        self.say(self.record.write(record, clients, self))
        return True

    def _observed(self, moment: Moment, report: RoundReport) -> Record:
        """What members said of the model that they received, and whose word was refused."""
        refused = {rejected.client for rejected in report.rejected}
        self._scores = {m: s for m, s in self.engine.scores.items() if m not in refused}
        accuracy = mean_score(self._scores, self.online.judges)
        by_member = {str(m): score[0] for m, score in sorted(self._scores.items())}
        found: Record = {
            "accuracy": accuracy,
            "loss": mean_score(self._scores, self.online.judges, 1),
            "accepted": list(report.accepted),
            "received": {"accuracy": accuracy, "by_member": by_member},
            "by_member": by_member,
            "rejected": self.log.refusals(),
        }
        if self.account is not None:
            found["epsilon"] = round(self.account.epsilon(), 4)
            found["epsilon_against_server"] = round(self.account.against_server(), 4)
        return found

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

    def _judged(self, before: Federation, after: Federation) -> Federation:
        """The new state, or the last good one if members say that the model went bad."""
        good = self.rollback.good
        worse = self.rollback.judge(before, self._scores, self.online.judges)
        if worse is None or good is None:
            return after
        for state, name in ((before, "dropped"), (good.federation, "good")):
            self.record.keep_model(self, state, f"round-{state.round:04d}-{name}")
        text = (
            f"round {before.round}: members find the model worse by {worse:.3f} than after round "
            f"{good.federation.round - 1}; going back to that one (both are in models/)"
        )
        self.log.event("rollback", text, round=before.round, to=good.federation.round)
        back = good.federation.snapshot()
        back.round = after.round
        return back

    def _finish(self) -> None:
        """The last model, judged once more by whoever is here."""
        members = tuple(sorted(self.online.here))
        moment = self.world.at(self.rules.num_server_rounds - 1)
        jobs = [Job(member) for member in members]
        order = make_order(Round(self.federation, self.settings, moment), 0, jobs)
        scores = self.engine.score(order) if members and self.account is None else {}
        self.log.write()
        self.record.finish(self, scores)
