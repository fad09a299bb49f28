"""Counts what went wrong: from the ledger, the database and what clients were told.

It shares nothing with the product: plain drivers, SQL by hand, its own table of moves. What
has to be there it knows from the orders (`orders`); what passed in between from the witness.
`tests/faults/test_chaos_checker.py` plants each kind of violation and sees it counted.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tests.chaos.orders import AMOUNT, VERBS, fails, parts
from tests.chaos.records import EFFECTS, Call, Question, Rows, Run, Step, read_lineage, read_runs

#: design.md §1: which status may follow which under one epoch.
MOVES: Mapping[str | None, frozenset[str]] = {
    None: frozenset({"queued"}),
    "queued": frozenset({"cancelled"}),
    "running": frozenset(
        {"waiting_human", "sleeping", "queued", "cancelling", "succeeded", "failed"}
    ),
    "waiting_human": frozenset({"queued", "cancelled"}),
    "sleeping": frozenset({"queued", "cancelled"}),
    "cancelling": frozenset({"cancelled", "queued", "waiting_human"}),  # while it is undone
    "failed": frozenset({"queued"}),
}
#: And what a claim, which is a new epoch, makes of a status: the second two are takeovers.
CLAIMS: Mapping[str | None, frozenset[str]] = {
    "queued": frozenset({"running", "cancelling"}),  # the latter, to undo what it did
    "running": frozenset({"running"}),
    "cancelling": frozenset({"cancelling"}),
}
#: What each line of the audit moves a run to; lines that aren't here move nothing.
AUDITED: Mapping[str, str] = {
    "run_submitted": "queued", "run_claimed": "claimed", "run_taken_over": "claimed",
    "run_parked": "waiting_human", "run_slept": "sleeping", "run_handed_back": "queued",
    "run_requeued": "queued", "run_resumed": "queued", "run_retried": "queued",
    "run_cancelling": "cancelling", "run_succeeded": "succeeded", "run_failed": "failed",
    "run_cancelled": "cancelled", "run_compensating": "unwinding",
}  # fmt: skip
OWNED = ("running", "cancelling")
ASKED = ("tool", "ask", "interrupt")  # by an act, and not by the runtime
FINAL = ("succeeded", "failed", "cancelled")
WRITES = ("local.pay", "local.charge", "local.book", "local.post", "local.mail")

#: Everything that is counted; each must be zero.
COUNTED: Mapping[str, str] = {
    "duplicated effect": "an order's part, or an idempotency key, that was applied twice",
    "effect without a record": "applied in the ledger, and no step says so",
    "record without an effect": "a step says that it was done, and the ledger has nothing",
    "wrong effect": "applied and not ordered, refused by a person, or of another amount",
    "missing effect": "a run succeeded without it",
    "effect not undone": "a run failed or was cancelled, and what it had booked stands",
    "undone out of order": "what came later was undone later",
    "lost run": "a submit was accepted, and no run is there or it never ended",
    "doubled run": "one order, two runs",
    "failed run": "it failed without a reason, or succeeded though it can't",
    "wrong result": "the run's output is not what its order and its decisions make",
    "lost decision": "a decision was accepted, and another or none stands",
    "doubled decision": "a question that was decided twice, or changed its answer",
    "unfounded refusal": "a client was told 4xx where nothing stood in the way",
    "lost cancel": "a cancel was accepted, and the run ended otherwise",
    "lost signal": "it was accepted, and is gone, there twice, or taken by nobody",
    "forbidden transition": "a status that may not follow the one before",
    "gap in the audit": "the audit tells other moves than the database saw",
    "write by a stale epoch": "a step under an epoch that was over, or an epoch that did not grow by one",
    "recorded step rewritten": "an answer in the journal that changed",
    "question asked twice": "the same payload under the same key of a run",
    "approval used twice": "an approval on two steps, or on a step that it was not given for",
    "lost message": "in the outbox and not delivered, or not in the outbox",
    "message without a row": "delivered, and not in the outbox",
    "message out of order": "first deliveries of a run in another order than it sent them",
    "forked checkpoint": "two checkpoints of a thread behind one and the same",
}


@dataclass(frozen=True, slots=True)
class Violation:
    """One thing that must not be."""

    kind: str
    about: str


class Findings:
    """All that is known after a campaign, and what is wrong with it."""

    def __init__(
        self, rows: Rows, calls: Sequence[Call], told: Sequence[Mapping[str, Any]]
    ) -> None:
        self._rows, self.calls, self.told = rows, calls, told
        self.runs = {run.id: run for run in read_runs(rows)}
        self.effects = [call for call in calls if call.is_effect]
        self.changes = [c for c in calls if c.op in (*EFFECTS, "undo") and c.verdict == "applied"]
        self.of_run: dict[str, list[Call]] = defaultdict(list)
        for call in self.effects:
            self.of_run[call.run_id].append(call)

    def violations(self) -> list[Violation]:
        """Return everything that must not be."""
        found: list[Violation] = []
        for look in _LOOKS:
            found += look(self)
        return found

    def counts(self) -> dict[str, int]:
        """Return how many there are of each kind, zeros too."""
        found = Counter(violation.kind for violation in self.violations())
        return {kind: found[kind] for kind in COUNTED}

    # --- the world -----------------------------------------------------------------------

    def duplicated_effects(self) -> Iterator[Violation]:
        """Return what was applied twice: by the order's part, and by the key."""
        by_part = Counter((call.op == "undo", call.order, call.part) for call in self.changes)
        by_key = Counter((c.op, c.key) for c in self.calls if c.key and c.verdict == "applied")
        for name, times in [*by_part.items(), *by_key.items()]:
            if times > 1:
                yield Violation("duplicated effect", f"{name}: {times} times")

    def effects_and_records(self) -> Iterator[Violation]:
        """Return where the ledger and the journals differ."""
        for call in self.effects:
            step = self._step_of(call)
            run = self.runs.get(call.run_id)
            may_be_open = run is not None and run.status in ("cancelled", "failed")
            wanted = ("recorded", "intent", "failed") if may_be_open else ("recorded",)
            if step is None or step.state not in wanted:
                state = step.state if step else "no step"
                yield Violation("effect without a record", f"{call.order} {call.part}: {state}")
        done = Counter((call.run_id, call.part) for call in self.effects)
        for run in self.runs.values():
            for step in run.steps.values():
                is_done = step.name in WRITES and step.state == "recorded" and not step.refused
                if is_done and not done[run.id, step.key]:
                    yield Violation("record without an effect", f"{run.order} {step.key}")

    def _step_of(self, call: Call) -> Step | None:
        run = self.runs.get(call.run_id)
        return run.steps.get(call.part) if run else None

    def effects_and_orders(self) -> Iterator[Violation]:
        """Return effects that nobody wanted, and those that a finished run lacks."""
        for run in self.runs.values():
            wanted = dict(_wanted(run))
            made = {call.part: call.amount for call in self.of_run[run.id]}
            for part, amount in made.items():
                if wanted.get(part) != amount:
                    yield Violation(
                        "wrong effect", f"{run.order} {part}: {amount}, not {wanted.get(part)}"
                    )
            if run.status == "succeeded":
                for part in wanted.keys() - made.keys():
                    yield Violation("missing effect", f"{run.order} {part}")
        for call in self.effects:
            if call.run_id not in self.runs:
                yield Violation("wrong effect", f"{call.order}: of no run, {call.run_id}")

    def undoings(self) -> Iterator[Violation]:
        """Return what a run that did not succeed left behind, or undid in another order."""
        for run in self.runs.values():
            to_undo = {part for verb, part in parts(run.kind) if VERBS[verb].undone}
            calls = [c for c in self.changes if c.run_id == run.id and c.part in to_undo]
            undone = [call.part for call in calls if call.op == "undo"]
            booked = {call.part for call in calls if call.op != "undo"}
            if run.status == "succeeded":
                for part in undone:
                    yield Violation("wrong effect", f"{run.order} {part}: undone, and succeeded")
                continue
            for part in booked - set(undone):
                yield Violation("effect not undone", f"{run.order} {part}: the run {run.status}")
            for part in set(undone) - booked:
                yield Violation("wrong effect", f"{run.order} {part}: undone, and never done")
            # parts of one act run side by side, in any order; acts follow each other
            acts = [run.act_of(part) for part in undone]
            if acts != sorted(acts, reverse=True):
                yield Violation("undone out of order", f"{run.order}: {undone}")

    # --- runs ------------------------------------------------------------------------------

    def submits(self) -> Iterator[Violation]:
        """Return accepted orders that aren't there once, and ended."""
        accepted: dict[str, set[str]] = defaultdict(set)
        for said in self.told:
            if said["op"] == "submit" and said["status"] in (200, 201):
                accepted[said["order"]].add(said["run_id"])
        there: dict[str, list[Run]] = defaultdict(list)
        for run in self.runs.values():
            there[run.order].append(run)
        for order, ids in accepted.items():
            if not ids <= {run.id for run in there[order]}:
                yield Violation("lost run", f"{order}: {sorted(ids)} is not there")
        for order, runs in there.items():
            if len(runs) > 1 or len(accepted[order]) > 1:
                yield Violation("doubled run", order)
            for run in runs:
                if run.status not in FINAL:
                    yield Violation("lost run", f"{order}: {run.id} is {run.status} for ever")
                elif (run.status == "failed") != fails(run.kind) and run.status != "cancelled":
                    yield Violation("failed run", f"{order} ({run.kind}.{run.mode}): {run.error}")

    def results(self) -> Iterator[Violation]:
        """Return outputs that aren't what was ordered and decided."""
        for run in self.runs.values():
            if run.status != "succeeded":
                continue
            output = run.output if isinstance(run.output, dict) else {}
            lines = sorted(map(str, output.get("results", [])))
            wanted = sorted(_lines(run))
            if lines != wanted:
                yield Violation("wrong result", f"{run.order}: {lines}, not {wanted}")

    # --- people ------------------------------------------------------------------------------

    def decisions(self) -> Iterator[Violation]:
        """Return decisions that were accepted and don't stand, or don't stand alone."""
        questions = {q.id: q for run in self.runs.values() for q in run.questions}
        for said in self.told:
            if said["op"] != "decide":
                continue
            question = questions.get(said["question"])
            name = f"{said['question']}: {said['said']} by {said['by']}"
            if question is None:
                yield Violation("lost decision", f"{name}, a question that is gone")
            elif said["status"] == 200:
                if question.state != "decided" or not _stands(said, question):
                    yield Violation("lost decision", f"{name}; {question.decision} stands")
            elif 400 <= said["status"] < 500 and not _explains(question, said):
                yield Violation("unfounded refusal", f"{name}: {said['status']} {said['detail']}")
        told = Counter(
            json.loads(data)["question_id"]
            for (data,) in self._rows("SELECT data FROM events WHERE type = 'question_decided'")
        )
        for question in questions.values():
            if told[question.id] != (question.state == "decided"):
                about = f"{question.id} is {question.state}, decided {told[question.id]} times"
                kind = "doubled decision" if told[question.id] > 1 else "gap in the audit"
                yield Violation(kind, about)

    def answers_that_changed(self) -> Iterator[Violation]:
        """Return answers that did not stay as they were given."""
        seen = self._rows("SELECT question_id, was, state FROM chaos_answers ORDER BY id")
        for question_id, was, state in seen:
            if was != "open":
                yield Violation("doubled decision", f"{question_id}: from {was} to {state}")

    def cancels(self) -> Iterator[Violation]:
        """Return cancels that were accepted and had no effect, or were refused for nothing."""
        for said in self.told:
            if said["op"] != "cancel":
                continue
            run = self.runs.get(said["run_id"])
            status = run.status if run else "gone"
            if said["status"] == 200 and status != "cancelled":
                yield Violation("lost cancel", f"{said['run_id']} is {status}")
            elif 400 <= said["status"] < 500 and status not in ("succeeded", "failed"):
                yield Violation("unfounded refusal", f"cancel of {said['run_id']}, {status}")

    def signals(self) -> Iterator[Violation]:
        """Return signals that were accepted and are gone, came twice, or were never taken."""
        kept: Counter[tuple[str, str]] = Counter()
        taken = {}
        for run_id, id_, by in self._rows("SELECT run_id, id, taken_by FROM signals"):
            kept[run_id, id_] += 1
            taken[run_id, id_] = by
        for said in self.told:
            if said["op"] != "signal":
                continue
            name = (said["run_id"], said["part"])
            run = self.runs.get(said["run_id"])
            status = run.status if run else "gone"
            if said["status"] < 300 and said["status"]:
                if kept[name] != 1 or (status == "succeeded" and taken[name] != said["part"]):
                    yield Violation("lost signal", f"{name}: kept {kept[name]} times, {status}")
            elif 400 <= said["status"] < 500 and status not in FINAL:
                yield Violation("unfounded refusal", f"signal {name}: {said['status']}, {status}")

    def questions(self) -> Iterator[Violation]:
        """Return what was asked twice, and approvals that did not do exactly their work."""
        asked: Counter[tuple[str, str, str]] = Counter()
        used: Counter[str] = Counter()
        given: dict[str, tuple[str, str]] = {}
        for run in self.runs.values():
            asked.update((q.run_id, q.key, q.digest) for q in run.questions)
            used.update(step.approval for step in run.steps.values() if step.approval)
            given |= {q.approval: (run.id, q.key) for q in run.questions if q.approval}
        for name, times in asked.items():
            if times > 1:
                yield Violation("question asked twice", f"{name}: {times} times")
        for run in self.runs.values():
            for step in run.steps.values():
                if step.approval and (
                    used[step.approval] > 1 or given.get(step.approval) != (run.id, step.key)
                ):
                    yield Violation(
                        "approval used twice", f"{step.approval} on {run.order} {step.key}"
                    )
            for question in run.questions:
                lacks = question.approval and not used[question.approval]
                if lacks and question.kind == "tool" and run.status == "succeeded":
                    yield Violation("lost decision", f"{question.id}: its yes is on no step")

    # --- the store -----------------------------------------------------------------------------

    def moves(self) -> Iterator[Violation]:
        """Return forbidden moves, epochs that went wrong, and what the audit tells otherwise."""
        audit: dict[str, list[str]] = defaultdict(list)
        for run_id, type_ in self._rows("SELECT run_id, type FROM events ORDER BY id"):
            line = AUDITED.get(type_)
            if line == "unwinding" and audit[run_id][-1] != "queued":
                line = "queued"
            if line not in (None, "unwinding"):
                audit[run_id].append(line)
        seen: dict[str, list[str]] = defaultdict(list)
        query = "SELECT run_id, old, new, old_epoch, epoch FROM chaos_moves ORDER BY id"
        for run_id, old, new, old_epoch, epoch in self._rows(query):
            grown = epoch - (old_epoch or 0)
            seen[run_id].append("claimed" if grown else new)
            if new not in (CLAIMS if grown else MOVES).get(old, ()):
                yield Violation("forbidden transition", f"{run_id}: from {old} to {new}, {grown}")
            if grown not in (0, 1) or (old is None and grown):
                about = f"{run_id}: {old} to {new}, epoch from {old_epoch} to {epoch}"
                yield Violation("write by a stale epoch", about)
        for run in self.runs.values():
            if audit[run.id] != seen[run.id]:
                yield Violation(
                    "gap in the audit", f"{run.id}: {audit[run.id]}, not {seen[run.id]}"
                )
            if seen[run.id] and seen[run.id][-1] not in (run.status, "claimed"):
                yield Violation(
                    "gap in the audit", f"{run.id} is {run.status}, after {seen[run.id]}"
                )

    def writes(self) -> Iterator[Violation]:
        """Return steps that were written by who did not own the run, and answers that changed."""
        query = "SELECT run_id, key, was, state, epoch, run_epoch, run_status FROM chaos_writes"
        for run_id, key, was, state, epoch, run_epoch, status in self._rows(f"{query} ORDER BY id"):
            name = f"{run_id} {key}: {state} under epoch {epoch}, while {status} under {run_epoch}"
            if epoch != run_epoch or status not in OWNED:
                yield Violation("write by a stale epoch", name)
            if was == "recorded":
                yield Violation("recorded step rewritten", name)

    def stale_effects(self) -> Iterator[Violation]:
        """Return effects that came under a token when a newer one had been seen."""
        newest: dict[str, int] = defaultdict(int)
        for call in self.calls:
            if call.token is None:
                continue
            if call.verdict != "stale" and call.token < newest[call.run_id]:
                yield Violation("write by a stale epoch", f"ledger: {call}")
            newest[call.run_id] = max(newest[call.run_id], call.token)

    def checkpoints(self) -> Iterator[Violation]:
        """Return threads of graph mode that have two histories."""
        children: Counter[tuple[str, str, str]] = Counter()
        for row in read_lineage(self._rows):
            children[row] += 1
        for thread, _, parent in (name for name, times in children.items() if times > 1):
            yield Violation("forked checkpoint", f"{thread} behind {parent}")

    # --- messages ------------------------------------------------------------------------------

    def messages(self) -> Iterator[Violation]:
        """Return messages that were lost, made up, or came in another order."""
        rows = self._rows("SELECT run_id, key, state FROM outbox ORDER BY id")
        sent = {f"{run_id}:{key}": state for run_id, key, state in rows}
        came = [c.key for c in self.calls if c.op == "message" and c.verdict == "applied" and c.key]
        for id_, state in sent.items():
            if state != "delivered" or id_ not in came:
                yield Violation("lost message", f"{id_} is {state}")
        for id_ in came:
            if id_ not in sent:
                yield Violation("message without a row", id_)
        for run in self.runs.values():
            wanted = [f"{run.id}:{part}" for verb, part in parts(run.kind) if VERBS[verb].tells]
            if run.status == "succeeded":
                yield from (
                    Violation("lost message", f"{i} never sent") for i in wanted if i not in sent
                )
            arrived = [id_ for id_ in came if id_.startswith(f"{run.id}:")]
            if arrived != [id_ for id_ in wanted if id_ in arrived]:
                yield Violation("message out of order", f"{run.order}: {arrived}")


_LOOKS: Sequence[Callable[[Findings], Iterable[Violation]]] = (
    Findings.undoings, Findings.signals,
    Findings.duplicated_effects, Findings.effects_and_records, Findings.effects_and_orders,
    Findings.submits, Findings.results, Findings.decisions, Findings.answers_that_changed,
    Findings.cancels, Findings.questions, Findings.moves, Findings.writes,
    Findings.stale_effects, Findings.checkpoints, Findings.messages,
)  # fmt: skip


# --- what is wanted ------------------------------------------------------------------------------


def _wanted(run: Run) -> Iterator[tuple[str, int]]:
    """Return the effects that a run may have, with their amounts: all of them if it succeeds."""
    for verb, part in parts(run.kind):
        needs = VERBS[verb].effect
        if needs == "always":
            yield part, AMOUNT
        elif needs == "yes":
            amount = _allowed(run, part)
            if amount is not None:
                yield part, amount


def _allowed(run: Run, part: str) -> int | None:
    """Return the amount that a person said yes to."""
    decision = _decision(run, part)
    if decision is None or decision["choice"] == "reject" or decision.get("value") is False:
        return None
    edited = decision.get("arguments") or {}
    return int(edited.get("amount", AMOUNT))


def _decision(run: Run, part: str) -> Any:
    for question in run.questions:
        if question.part == part and question.state == "decided" and question.kind in ASKED:
            return question.decision
    return None


def _lines(run: Run) -> Iterator[str]:
    """Return the lines of a run's result."""
    wanted = dict(_wanted(run))
    for verb, part in parts(run.kind):
        if not VERBS[verb].shows:
            continue
        if VERBS[verb].hears:
            yield f"{part}={part}"
        elif VERBS[verb].effect == "never":  # a question with a free answer
            decision = _decision(run, part)
            yield f"{part}={'late' if decision is None else decision['value']}"
        else:
            yield f"{part}={wanted.get(part, 'refused')}"


def _stands(said: Mapping[str, Any], question: Question) -> bool:
    made, stands = said["said"], question.decision
    return (
        stands is not None
        and made["choice"] == stands["choice"]
        and made.get("value") == stands["value"]
        and made.get("arguments") == stands["arguments"]
    )


def _explains(question: Question, said: Mapping[str, Any]) -> bool:
    """Whether a question's end explains that a decision was refused."""
    if question.state in ("expired", "closed"):
        return True
    return question.state == "decided" and not _stands(said, question)
