"""Customers who order, and people who decide: over HTTP, with double clicks and races.

They write down what they were told, and nothing else: a status code, or that no answer came.
The checker holds the database to it.
"""

from __future__ import annotations

import http.client
import json
import random
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.chaos import ledger
from tests.chaos.databases import Database
from tests.chaos.orders import EDITED, VERBS, Order, is_undone, order, parts

FINAL = "('succeeded', 'failed', 'cancelled')"
NO_ANSWER = 0  # the status of a call that was sent, and whose fate is not known
PATIENCE_SECONDS = 10.0


class Told:
    """What clients were told: one line of JSON for each answer."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._guard = threading.Lock()
        self._file = path.open("a")

    def write(self, op: str, status: int, **what: Any) -> None:
        """Keep one answer."""
        line = json.dumps({"at": time.time(), "op": op, "status": status, **what})
        with self._guard:
            self._file.write(line + "\n")
            self._file.flush()

    def close(self) -> None:
        """Write no more."""
        self._file.close()


@dataclass(frozen=True, slots=True)
class Api:
    """The task API, as one person sees it."""

    port: int
    keys: Mapping[str, str]

    def call(
        self, who: str, method: str, path: str, body: Any = None, **headers: str
    ) -> tuple[int, Any]:
        """Make one call; the status is NO_ANSWER if none came, whatever became of it."""
        headers = {
            "Authorization": f"Bearer {self.keys[who]}",
            "Content-Type": "application/json",
            **{name.replace("_", "-"): value for name, value in headers.items()},
        }
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE_SECONDS)
        try:
            connection.request(method, path, None if body is None else json.dumps(body), headers)
            answer = connection.getresponse()
            return answer.status, json.loads(answer.read())
        except (OSError, http.client.HTTPException, ValueError):
            return NO_ANSWER, None
        finally:
            connection.close()


def is_unknown(status: int) -> bool:
    """Whether an answer says nothing about what became of the request."""
    return status == NO_ANSWER or status >= 500


def at_once(*acts: Callable[[], Any]) -> None:
    """Do several things in the same moment."""
    gate = threading.Barrier(len(acts))

    def do(act: Callable[[], Any]) -> None:
        gate.wait()
        act()

    threads = [threading.Thread(target=do, args=(act,)) for act in acts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


class People(threading.Thread, ABC):
    """People who do something until they are told to stop."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self._stopping = threading.Event()
        self._error: Exception | None = None

    def stop(self) -> None:
        """Begin nothing more; what is begun is seen through."""
        self._stopping.set()

    def check(self) -> None:
        """Raise what ended them before they were told to stop."""
        if self._error is not None:
            raise self._error

    def run(self) -> None:
        """Act until told to stop."""
        try:
            self.act()
        except Exception as error:
            self._error = error

    @abstractmethod
    def act(self) -> None:
        """Do it."""


class Customers(People):
    """Order one after another, as long as not too many orders are under way."""

    def __init__(self, api: Api, told: Told, database: Database, seed: int, backlog: int) -> None:
        super().__init__()
        self._api, self._told, self._database = api, told, database
        self._seed, self._backlog = seed, backlog
        self._under_hand: list[threading.Thread] = []
        self.ordered = 0

    def act(self) -> None:
        """Order until told to stop."""
        while not self._stopping.is_set():
            if self._under_way() >= self._backlog:
                self._stopping.wait(0.1)
                continue
            for _ in range(4):
                self._order(order(self._seed, self.ordered + 1))
                self.ordered += 1
        for thread in self._under_hand:
            thread.join()

    def _under_way(self) -> int:
        query = f"SELECT count(*) FROM runs WHERE status NOT IN {FINAL}"
        return int(self._database.rows(query)[0][0])

    def _order(self, new: Order) -> None:
        """Submit until an answer comes; sometimes by a double click; sometimes cancel later."""
        chance = random.Random(f"{self._seed}/customer/{new.number}")
        found: list[str] = []

        def submit() -> None:
            found.append(self._submit(new, chance))

        if chance.random() < 0.2:
            at_once(submit, submit)
        else:
            submit()
        news = [part for verb, part in parts(new.kind) if VERBS[verb].hears]
        if news:
            self._later(self._signal, found[0], news, chance.random())
        if chance.random() < (0.5 if is_undone(new.kind) else 0.05):
            self._later(self._cancel, found[0], chance.random() * 2.0)

    def _later(self, act: Callable[..., None], *given: Any) -> None:
        thread = threading.Thread(target=act, args=given)
        thread.start()
        self._under_hand.append(thread)

    def _submit(self, new: Order, chance: random.Random) -> str:
        body = {"agent": new.agent, "input": {"order": new.id, "results": []}}
        while True:
            status, said = self._api.call("mei", "POST", "/v1/runs", body, Idempotency_Key=new.id)
            run_id = said.get("id") if status in (200, 201) else None
            self._told.write("submit", status, order=new.id, kind=new.kind, run_id=run_id)
            if run_id is not None:
                return str(run_id)
            if not is_unknown(status):
                raise AssertionError(f"order {new.id}: {status} {said}")
            time.sleep(0.1)

    def _signal(self, run_id: str, news: list[str], delay: float) -> None:
        """Signal one after the other, each until an answer comes, and then once more."""
        for part in news:
            time.sleep(delay)
            body, accepted = {"event": "news", "payload": part, "id": part}, 0
            while accepted < 2:
                status, _ = self._api.call("tom", "POST", f"/v1/runs/{run_id}/signals", body)
                self._told.write("signal", status, run_id=run_id, part=part)
                if 400 <= status < 500:
                    return  # the run has ended: the checker asks why
                accepted += not is_unknown(status)
                time.sleep(0.1)

    def _cancel(self, run_id: str, delay: float) -> None:
        time.sleep(delay)
        status = NO_ANSWER
        while is_unknown(status):
            status, said = self._api.call("tom", "POST", f"/v1/runs/{run_id}/cancel")
            now = said.get("status") if status == 200 else None
            self._told.write("cancel", status, run_id=run_id, now=now)
            time.sleep(0.1)


class Deciders(People):
    """Look into the inbox and decide what is there, each in one of several clumsy ways."""

    def __init__(
        self, api: Api, told: Told, database: Database, books: ledger.Client, seed: int
    ) -> None:
        super().__init__()
        self._api, self._told, self._database, self._books = api, told, database, books
        self._seed = seed
        self._left_alone: dict[str, float] = {}

    def act(self) -> None:
        """Decide until told to stop."""
        while not self._stopping.wait(0.15):
            status, inbox = self._api.call("mei", "GET", "/v1/questions?limit=200")
            for question in inbox["items"] if status == 200 else ():
                self._look_at(question)

    def _look_at(self, question: Mapping[str, Any]) -> None:
        chance = random.Random(f"{self._seed}/decider/{self._about(question)}")
        until = self._left_alone.setdefault(question["id"], time.monotonic() + chance.random())
        if time.monotonic() < until:
            return
        if question["expires_at"] and chance.random() < 0.5:
            return  # nobody answers: it expires
        if question["kind"] == "review":
            self._decide(question, "mei", {"choice": "approve"})
            return
        if question["kind"] in ("outcome", "compensation"):
            body = self._happened(question)
            if body is not None:
                self._decide(question, "mei", body)
            return
        first, other = _answers(question, chance)
        how = chance.random()
        if how < 0.25:  # a double click
            at_once(*[lambda: self._decide(question, "mei", first)] * 2)
        elif how < 0.5:  # two people at the same time
            at_once(
                lambda: self._decide(question, "mei", first),
                lambda: self._decide(question, "tom", other),
            )
        else:
            self._decide(question, "mei", first)
            if how < 0.7:  # and somebody who comes too late
                self._decide(question, "tom", other)

    def _about(self, question: Mapping[str, Any]) -> str:
        """Name a question by what it is about: ids differ from campaign to campaign."""
        payload = question["payload"]
        about = payload.get("arguments", payload) if isinstance(payload, dict) else {}
        return f"{about.get('order')}/{question['key']}"

    def _happened(self, question: Mapping[str, Any]) -> Any:
        """Look into the ledger whether a call happened, as the newest claim of its run.

        A call on its way is not seen by a look; showing the token makes it stale.
        """
        payload = question["payload"]
        asked = payload.get("compensation", payload)["arguments"]
        epoch = self._database.rows("SELECT epoch FROM runs WHERE id = ?", question["run_id"])[0][0]
        try:
            amount = self._books.call("look", run_id=question["run_id"], token=epoch, **asked)[
                "amount"
            ]
        except (OSError, ledger.Refused):
            return None  # look again later
        if amount is None:
            return {"choice": "reject"}
        if question["kind"] == "compensation":
            return {"choice": "approve"}
        return {"choice": "respond", "value": amount}

    def _decide(self, question: Mapping[str, Any], who: str, body: Mapping[str, Any]) -> None:
        address = f"/v1/questions/{question['id']}/decision"
        status, said = self._api.call(who, "POST", address, body)
        self._told.write(
            "decide", status, question=question["id"], run_id=question["run_id"], by=who,
            said=dict(body), detail=said if status not in (200, NO_ANSWER) else None,
        )  # fmt: skip


def _answers(question: Mapping[str, Any], chance: random.Random) -> tuple[Any, Any]:
    """Return two different answers to a question."""
    if question["kind"] == "tool":
        edited = {**question["payload"], "amount": EDITED}
        answers = [
            {"choice": "approve"},
            {"choice": "reject", "reason": "too much"},
            {"choice": "edit", "arguments": edited},
        ]
    elif question["kind"] == "interrupt":
        answers = [{"choice": "respond", "value": value} for value in (True, False)]
    else:
        answers = [{"choice": "respond", "value": value} for value in ("red", "blue")]
    first, other = chance.sample(answers, 2)
    return first, other
