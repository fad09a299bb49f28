"""Delivering messages of the outbox: to a webhook, or to a function.

At least once, those of one run in order; a receiver tells repeats apart by the message's id.
A message that can't be delivered is tried again, later and later, and is dead after
`TRIES`: the run's next messages go on, and an operator may send it again
(`langgraph-durable outbox`).
"""

from __future__ import annotations

import hashlib
import hmac
import inspect
import json
import logging
import re
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from http.client import HTTPException, HTTPMessage
from typing import IO, Any, Protocol
from urllib.parse import urlsplit

from tenacity import Retrying, retry_if_exception_type, stop_after_attempt, wait_random_exponential

from langgraph_durable import topics
from langgraph_durable.errors import BadInput, DurableError
from langgraph_durable.store import Message, RunStore

__all__ = [
    "Message",
    "NotDelivered",
    "Relay",
    "Sink",
    "Webhook",
    "sinks",
    "topic_routes",
    "verify",
]

log = logging.getLogger(__name__)

_STAMP = re.compile(r"t=[0-9]{1,15}")
TRIES = 12  # with the waits below: about a day
FIRST_SECONDS, LIMIT_SECONDS = 5.0, 4 * 3600.0
BATCH = 4
HOLD_SECONDS = 180.0  # longer than a batch takes, if its webhook takes all its time

ID_HEADER = "X-Langgraph-Durable-Id"
TOPIC_HEADER = "X-Langgraph-Durable-Topic"
SIGNATURE_HEADER = "X-Langgraph-Durable-Signature"


class NotDelivered(DurableError):
    """A receiver could not be reached, or did not take the message."""


class Sink(Protocol):
    """Where messages go. It raises if one did not arrive."""

    def __call__(self, message: Message) -> object:
        """Deliver one message."""
        ...


class Webhook:
    """Posts messages as JSON to an address, signed with a secret.

    The header `X-Langgraph-Durable-Signature` is `t=<seconds>,v1=<HMAC-SHA256 of "t.body">`;
    `verify` checks it. An answer other than 2xx is a failure; redirects are not followed.
    """

    def __init__(
        self, url: str, secret: str, *, timeout_seconds: float = 10.0, tries: int = 3
    ) -> None:
        if urlsplit(url).scheme not in ("http", "https") or not urlsplit(url).netloc:
            raise BadInput(f"a webhook's address is http:// or https://, not {url!r}")
        if not secret:
            raise BadInput("a webhook needs a secret: its receiver checks the signature with it")
        self.url = url
        self._secret, self._timeout, self._tries = secret, timeout_seconds, tries
        self._opener = urllib.request.build_opener(_NoRedirects)

    def __call__(self, message: Message) -> None:
        """Post a message; a passing failure is tried again at once.

        Raises:
            NotDelivered: it was not taken.
        """
        trying = Retrying(
            retry=retry_if_exception_type(NotDelivered),
            stop=stop_after_attempt(self._tries),
            wait=wait_random_exponential(multiplier=0.2, max=2.0),
            reraise=True,
        )
        trying(self._post, message)

    def _post(self, message: Message) -> None:
        body = json.dumps(body_of(message)).encode()
        headers = {
            "Content-Type": "application/json",
            ID_HEADER: message.id,
            TOPIC_HEADER: message.topic,
            SIGNATURE_HEADER: sign(self._secret, body),
        }
        request = urllib.request.Request(self.url, body, headers)  # noqa: S310  # http(s) only
        try:
            with self._opener.open(request, timeout=self._timeout) as answer:
                answer.read(1)
        except urllib.error.HTTPError as error:
            error.close()
            raise NotDelivered(f"{self.url} answered {error.code}") from None
        except (OSError, HTTPException) as error:
            raise NotDelivered(f"{self.url}: {error}") from error


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """A signed body is for one address; where that points to is not asked."""

    def redirect_request(
        self,
        req: urllib.request.Request,
        fp: IO[bytes],
        code: int,
        msg: str,
        headers: HTTPMessage,
        newurl: str,
    ) -> None:
        """Follow none."""


def body_of(message: Message) -> Mapping[str, Any]:
    """Return what a webhook posts."""
    return {
        "id": message.id,
        "topic": message.topic,
        "created_at": message.created_at.isoformat(),
        "run_id": message.run_id,
        "tenant": message.tenant,
        "data": message.payload,
    }


def sign(secret: str, body: bytes, at: int | None = None) -> str:
    """Return the signature of a body, with the time at which it was made."""
    stamp = int(time.time()) if at is None else at
    mac = hmac.new(secret.encode(), f"{stamp}.".encode() + body, hashlib.sha256)
    return f"t={stamp},v1={mac.hexdigest()}"


def verify(secret: str, signature: str, body: bytes, *, max_age_seconds: float = 300.0) -> bool:
    """Tell whether a body was signed with the secret, not long ago: for receivers."""
    stamp, comma, _ = signature.partition(",")
    if not signature.isascii() or not comma or not _STAMP.fullmatch(stamp):
        return False
    at = int(stamp[2:])
    if not hmac.compare_digest(sign(secret, body, at).encode(), signature.encode()):
        return False
    return abs(time.time() - at) <= max_age_seconds


def sinks(given: Sequence[Sink]) -> Sequence[Sink]:
    """Return what `notify=` was given, or refuse what could not be called.

    Raises:
        BadInput: one of them is no function, or an async one.
    """
    for sink in given:
        if not callable(sink) or inspect.iscoroutinefunction(sink):
            raise BadInput(f"notify= takes webhooks and plain functions of a message, not {sink!r}")
    return tuple(given)


def topic_routes(outbox: Mapping[str, Sink]) -> Mapping[tuple[str, ...], Sequence[Sink]]:
    """Return the sinks of emitted messages by their topics; the first that fits takes a message.

    Raises:
        BadInput: a topic can't be told from a notification's, or a sink can't be called.
    """
    found: dict[tuple[str, ...], Sequence[Sink]] = {}
    for topic, sink in outbox.items():
        topics.check(topic)
        found[(topic,)] = sinks([sink])
    return found


class Relay:
    """Delivers what is due, topic by topic, to the sinks of each."""

    def __init__(
        self,
        store: RunStore,
        routes: Mapping[tuple[str, ...], Sequence[Sink]],
        chance: Callable[[], float],
    ) -> None:
        self._store, self._chance = store, chance
        self._routes = {patterns: tuple(to) for patterns, to in routes.items() if to}

    def __bool__(self) -> bool:
        """Whether anybody is to be told anything."""
        return bool(self._routes)

    def deliver(self, limit: int = 1_000) -> int:
        """Try what is due, at most so many; returns how many messages arrived."""
        arrived = tried = 0
        for patterns, to in self._routes.items():
            while tried < limit:  # by tries: what fails slowly comes up again meanwhile
                taken = self._store.take_messages(patterns, hold_seconds=HOLD_SECONDS, limit=BATCH)
                if not taken:
                    break
                tried += len(taken)
                arrived += sum(self._tell(message, to) for message in taken)
        return arrived

    def _tell(self, message: Message, to: Sequence[Sink]) -> bool:
        try:
            for sink in to:
                sink(message)
        except Exception as error:
            again = self._pause(message)
            said = f"{type(error).__name__}: {error}"
            log.warning("message %s (%s) not delivered: %s", message.id, message.topic, said)
            self._store.settle_message(message, said, again)
            return False
        self._store.settle_message(message, None)
        return True

    def _pause(self, message: Message) -> float | None:
        if message.attempts >= TRIES:
            return None
        wait = min(LIMIT_SECONDS, FIRST_SECONDS * 3.0 ** (message.attempts - 1))
        return wait * (0.5 + self._chance() / 2)  # at least half: many don't come at once
