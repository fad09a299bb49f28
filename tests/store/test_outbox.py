"""What the world outside is told: with its cause or not at all, in order, at least once."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from desk import Desk, at_once, question

from langgraph_durable import relay
from langgraph_durable.errors import BadInput, Conflict, NotFound
from langgraph_durable.relay import Message, NotDelivered, Relay, Webhook, sign, verify
from langgraph_durable.runs import Asked, Done, Lease
from langgraph_durable.store import Letters
from langgraph_durable.store.outbox import put
from langgraph_durable.topics import matches

TOPICS = ("question.*", "run.*")


@pytest.fixture
def telling(desk: Desk) -> Desk:
    """A desk whose store writes notices."""
    desk.store.notifies = True
    return desk


def settled(desk: Desk) -> Lease:
    lease = desk.started().lease
    desk.store.settle(lease, Done("1"))
    return lease


def topics(desk: Desk, run_id: str) -> list[tuple[str, str]]:
    return [(m.topic, m.state) for m in desk.store.list_messages(run_id)]


def test_a_question_its_expiry_and_the_end_are_told_in_order(telling: Desk):
    desk, asked = telling, question(expires_in_seconds=5)
    lease = desk.started().lease
    desk.store.settle(lease, Asked((asked,)))
    desk.clock.advance(6)
    desk.store.sweep()
    desk.store.settle(desk.take().lease, Done("1"))
    told: list[Message] = []
    relay_ = Relay(desk.store, {TOPICS: [told.append]}, lambda: 0.5)
    assert relay_.deliver() == 3
    assert [m.topic for m in told] == ["question.asked", "question.expired", "run.ended"]
    assert told[0].payload["question_id"] == asked.id
    assert told[2].payload["event"] == "run_succeeded"
    assert relay_.deliver() == 0
    assert {state for _, state in topics(desk, lease.run_id)} == {"delivered"}


def test_without_a_listener_nothing_is_written(desk: Desk):
    assert desk.store.list_messages(settled(desk).run_id) == []


def test_what_is_undone_is_not_told(telling: Desk):
    desk = telling
    lease = desk.started().lease
    with desk.engine.connect() as tx:
        put(tx, desk.store._time, lease.run_id, "t", "k", "run.ended", {})
        tx.rollback()
    assert desk.store.list_messages(lease.run_id) == []


def test_the_same_key_of_a_run_is_one_message(telling: Desk):
    with telling.engine.begin() as tx:
        for payload in ({"n": 1}, {"n": 2}):
            put(tx, telling.store._time, "r", "t", "k", "run.ended", payload)
    (message,) = telling.store.list_messages("r")
    assert (message.id, message.payload) == ("r:k", {"n": 1})


def test_a_failed_delivery_is_tried_again_later_and_holds_back_what_follows(telling: Desk):
    desk, asked = telling, question()
    lease = desk.started().lease
    desk.store.settle(lease, Asked((asked,)))
    desk.decide(asked.id)
    desk.store.settle(desk.take().lease, Done("1"))
    broken, told = [True], []

    def sink(message: Message) -> None:
        if broken[0]:
            raise ConnectionError("away")
        told.append(message.topic)

    relay_ = Relay(desk.store, {TOPICS: [sink]}, lambda: 1.0)
    assert relay_.deliver() == 0
    assert relay_.deliver() == 0
    assert topics(desk, lease.run_id) == [("question.asked", "pending"), ("run.ended", "pending")]
    first = desk.store.list_messages(lease.run_id)[0]
    assert (first.attempts, first.error) == (1, "ConnectionError: away")
    broken[0] = False
    desk.clock.advance(relay.FIRST_SECONDS + 1)
    assert relay_.deliver() == 2
    assert told == ["question.asked", "run.ended"]


def test_after_its_last_try_a_message_is_dead_and_an_operator_is_told(
    telling: Desk, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(relay, "TRIES", 3)
    desk, calls = telling, []

    def sink(message: Message) -> None:
        calls.append(message.id)
        raise ConnectionError("gone")

    lease = settled(desk)
    relay_ = Relay(desk.store, {TOPICS: [sink]}, lambda: 1.0)
    for _ in range(6):
        relay_.deliver()
        desk.clock.advance(relay.LIMIT_SECONDS)
    assert len(calls) == 3
    assert len(set(calls)) == 1
    assert topics(desk, lease.run_id) == [("run.ended", "dead")]
    (complaint,) = desk.store.complaints()
    assert (complaint.kind, complaint.run_id) == ("dead message", lease.run_id)
    assert "gone" in complaint.what


@pytest.mark.promise("S-44")
def test_a_dead_message_is_seen_and_sent_again_with_its_id_and_its_receiver_gets_it(
    telling: Desk, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(relay, "TRIES", 2)
    desk, is_away, told = telling, [True], []

    def sink(message: Message) -> None:
        if is_away[0]:
            raise ConnectionError("gone")
        told.append(message.id)

    lease, other = settled(desk), settled(desk)
    relay_ = Relay(desk.store, {TOPICS: [sink]}, lambda: 1.0)
    for _ in range(3):
        relay_.deliver()
        desk.clock.advance(relay.LIMIT_SECONDS)
    dead = desk.store.list_outbox(Letters(state="dead"))
    assert [m.run_id for m in dead] == [other.run_id, lease.run_id]  # newest first
    assert desk.store.list_outbox(Letters(tenant="another")) == []
    is_away[0] = False
    first = dead[1]
    assert desk.store.resend(first.id, by="ada").attempts == 0
    assert relay_.deliver() == 1
    assert told == [first.id]
    assert desk.types(lease)[-1] == "message_resent"
    with pytest.raises(Conflict, match="delivered; only a dead one"):
        desk.store.resend(first.id, by="ada")
    for unknown in ("nope", "nope:k", f"{first.run_id}:nope", first.id + "\0"):
        with pytest.raises(NotFound):
            desk.store.resend(unknown, by="ada")
    with pytest.raises(NotFound):
        desk.store.resend(dead[0].id, by="ada", tenant="another")
    assert desk.store.resend_dead(by="ada", tenant="another") == 0
    assert desk.store.resend_dead(by="ada") == 1
    assert desk.store.resend_dead(by="ada") == 0
    assert relay_.deliver() == 1


def test_two_operators_at_once_revive_a_message_once(live: Desk):
    for _ in range(5):
        lease = live.started().lease
        with live.engine.begin() as tx:
            put(tx, live.store._time, lease.run_id, "t", "k", "refund.made", {})
        (message,) = live.store.take_messages(["refund.*"])
        live.store.settle_message(message, "no", None)
        got = at_once(*[lambda m=message: live.store.resend(m.id, by="x")] * 2)  # type: ignore[misc]
        assert sorted(type(one).__name__ for one in got) == ["Conflict", "Message"], got
        assert live.types(lease).count("message_resent") == 1
        live.store.settle(lease, Done("1"))
        live.store.settle_message(message, None)


def test_topics_are_told_apart_alike_on_every_database(desk: Desk):
    """By their capitals too, which LIKE would not see on SQLite; `_` is no wildcard."""
    topics = ["refund.paid", "Refund.paid", "refund", "refund.paid.x", "a_b", "axb", "refun"]
    patterns = ["refund.*", "refund", "Refund.*", "a_b", "a*", "refund.paid"]
    with desk.engine.begin() as tx:
        for topic in topics:
            put(tx, desk.store._time, topic, "t", "k", topic, {})
    for pattern in patterns:
        taken = {m.topic for m in desk.store.take_messages([pattern])}
        assert taken == {topic for topic in topics if matches([pattern], topic)}, pattern
        desk.clock.advance(61)


def test_a_worker_that_died_with_a_message_does_not_keep_it(telling: Desk):
    lease = settled(telling)
    (taken,) = telling.store.take_messages(TOPICS, hold_seconds=60)
    assert telling.store.take_messages(TOPICS) == []
    telling.clock.advance(61)
    (again,) = telling.store.take_messages(TOPICS)
    assert (again.id, again.attempts) == (taken.id, 2)
    telling.store.settle_message(again, None)
    telling.store.settle_message(taken, "late", 1.0)  # the dead one was only slow
    assert topics(telling, lease.run_id) == [("run.ended", "delivered")]


def test_many_workers_deliver_each_message_once(telling: Desk):
    for _ in range(12):
        settled(telling)
    told: list[str] = []
    relays = [Relay(telling.store, {TOPICS: [lambda m: told.append(m.id)]}, lambda: 0.5)] * 4
    assert sum(at_once(*(one.deliver for one in relays))) == 12
    assert len(told) == len(set(told)) == 12


def test_a_cancelled_run_has_ended_too(telling: Desk):
    run = telling.submit()
    telling.store.cancel(run.id, by="ada")
    (message,) = telling.store.list_messages(run.id)
    assert message.payload["event"] == "run_cancelled"


# --- webhooks --------------------------------------------------------------------------


class Receiver:
    """A web server that answers as it is told, and keeps what it got."""

    def __init__(self) -> None:
        self.got: list[tuple[dict[str, str], bytes]] = []
        self.answers: list[int] = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                outer.got.append((dict(self.headers), body))
                code = outer.answers.pop(0) if outer.answers else 204
                self.send_response(code)
                self.send_header("Location", "/elsewhere")
                self.end_headers()

            def log_message(self, *_: object) -> None: ...

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/hook"
        threading.Thread(target=self.server.serve_forever, args=(0.01,), daemon=True).start()


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    receiver = Receiver()
    yield receiver
    receiver.server.shutdown()
    receiver.server.server_close()


@pytest.mark.promise("S-80")
def test_a_webhook_is_signed_and_names_its_message(telling: Desk, receiver: Receiver):
    lease = settled(telling)
    assert Relay(telling.store, {TOPICS: [Webhook(receiver.url, "s3cret")]}, lambda: 0.5).deliver()
    ((headers, body),) = receiver.got
    told = json.loads(body)
    assert told["id"] == headers[relay.ID_HEADER]
    assert (told["topic"], told["run_id"], told["tenant"]) == ("run.ended", lease.run_id, "t")
    signature = headers[relay.SIGNATURE_HEADER]
    assert verify("s3cret", signature, body)
    assert not verify("other", signature, body)
    assert not verify("s3cret", signature, body + b" ")
    assert not verify("s3cret", sign("s3cret", body, at=1), body)
    for broken in ("", "t=,v1=", "t=x,v1=y", "v1=a", "t=1", "t=1,v1=\udc00é"):
        assert not verify("s3cret", broken, body)


def test_a_webhook_tries_again_at_once_and_never_follows_elsewhere(
    telling: Desk, receiver: Receiver
):
    message = telling_message(telling)
    receiver.answers = [500, 204]
    Webhook(receiver.url, "s")(message)
    assert len({headers[relay.ID_HEADER] for headers, _ in receiver.got}) == 1
    receiver.answers = [302, 404]
    with pytest.raises(NotDelivered):
        Webhook(receiver.url, "s", tries=2)(message)
    assert len(receiver.got) == 4


def telling_message(desk: Desk) -> Message:
    settled(desk)
    (message,) = desk.store.take_messages(TOPICS)
    return message


def test_what_could_not_be_told_to_is_refused():
    for url in ("ftp://x/y", "x", "http://", "file:///etc/passwd"):
        with pytest.raises(BadInput):
            Webhook(url, "s")
    with pytest.raises(BadInput):
        Webhook("http://x/", "")

    async def later(_message: Message) -> None: ...

    for sink in (later, "http://x/"):
        with pytest.raises(BadInput):
            relay.sinks([sink])  # type: ignore[list-item]
