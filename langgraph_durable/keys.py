"""API keys: made, checked, rotated, revoked.

A key reads `lgd_<id>_<secret>`. The id is public and finds the row; the secret is stored
only as an HMAC keyed with the pepper, which is not in the database: who copies the
database can neither use the keys nor try secrets.

Roles say what a key may do:

    agent        submit and read runs
    supervisor   read, and decide questions
    operator     read, cancel and retry runs, hand questions over, revoke rules, manage keys

Any other role reads, and decides the questions whose rule names it (`approver_role`).
Scopes say what it may touch: `agent:<name>`, one for each agent; none is all of its tenant.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import re
import secrets
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field

from langgraph_durable.errors import BadInput, BadKey, MissingPepper
from langgraph_durable.runs import DEFAULT_ROLE, MAX_NAME_CHARACTERS, Question, check_name
from langgraph_durable.store import RunStore
from langgraph_durable.store.keys import ApiKey, NewKey

__all__ = [
    "AGENT",
    "OPERATOR",
    "PEPPER_VARIABLE",
    "SUPERVISOR",
    "ApiKey",
    "Issued",
    "Keys",
    "check_approver",
    "may_answer",
    "may_decide",
    "may_hand_over",
]

PEPPER_VARIABLE = "LANGGRAPH_DURABLE_PEPPER"
AGENT, SUPERVISOR, OPERATOR = "agent", DEFAULT_ROLE, "operator"

_MIN_PEPPER_CHARACTERS = 16
_MAX_SECRET_CHARACTERS = 200
_ROLE = re.compile(r"[a-z][a-z0-9_.-]{0,63}")
_WHOLE = re.compile(r"lgd_([0-9a-f]{16})_([A-Za-z0-9_-]{43})")


@dataclass(frozen=True, slots=True)
class Issued:
    """A key that was just made: its secret is here, and never again."""

    key: ApiKey
    secret: str = field(repr=False)


class Keys:
    """The API keys of all tenants."""

    def __init__(self, store: RunStore, pepper: str | None = None) -> None:
        self._store, self._pepper = store, pepper

    def create(
        self,
        *,
        tenant: str,
        roles: Collection[str],
        name: str,
        scopes: Collection[str] = (),
        expires_in_seconds: float | None = None,
        by: str = "client",
    ) -> Issued:
        """Make a key; its secret is in the answer and can't be read again.

        `name` is how the audit calls who used it; two live keys of a tenant don't share one.

        Raises:
            BadInput: a name, role, scope or lifetime is malformed.
            Conflict: a live key of the tenant has that name.
            MissingPepper: no pepper is set.
        """
        check_name("tenant", tenant)
        check_name("name", name)
        _check_each("role", roles, _is_role)
        _check_each("scope", scopes, _is_scope)
        if not roles:
            raise BadInput("a key needs a role: agent, supervisor, operator or an approver's role")
        if expires_in_seconds is not None and not 0 < expires_in_seconds <= 3.2e9:
            raise BadInput(f"a key expires in some seconds, not {expires_in_seconds!r}")
        new, secret = self._made(
            tenant, name, sorted(set(roles)), sorted(set(scopes)), by, expires_in_seconds
        )
        return Issued(self._store.create_key(new), secret)

    def verify(self, secret: str) -> ApiKey:
        """Return the live key that a secret belongs to.

        Unknown, wrong, expired and revoked take the same way and give the same answer.

        Raises:
            BadKey: there is no live key with this secret.
            MissingPepper: no pepper is set.
        """
        parts = _WHOLE.fullmatch(secret) if len(secret) <= _MAX_SECRET_CHARACTERS else None
        key_id, hidden = parts.groups() if parts else ("", "")
        given = self._digest(key_id, hidden)
        found = self._store.find_key(key_id) if parts else None
        # an unknown id compares as long as a known one: time tells nothing
        fits = hmac.compare_digest(given, found[1] if found else "0" * len(given))
        if found is None or not fits or not found[0].is_live:
            raise BadKey
        return found[0]

    def find(self, key_id: str) -> ApiKey:
        """Return the live key of a public id: for a session that a secret has opened.

        Raises:
            BadKey: there is none, or it was revoked or has expired since.
        """
        found = self._store.find_key(key_id)
        if found is None or not found[0].is_live:
            raise BadKey
        return found[0]

    def rotate(
        self,
        key_id: str,
        *,
        tenant: str | None = None,
        grace_seconds: float = 0.0,
        by: str = "client",
    ) -> Issued:
        """Replace a key by a new one of the same name, roles, scopes and length of life.

        The old one works for `grace_seconds` more, so that its users can change over.

        Raises:
            NotFound: no such key for this tenant.
            BadInput: it is revoked or expired, or the grace is negative.
            MissingPepper: no pepper is set.
        """
        if not 0 <= grace_seconds <= 3.2e9:
            raise BadInput(f"grace_seconds is 0 or more, not {grace_seconds!r}")
        old = self._store.get_key(key_id, tenant)
        if not old.is_live:
            raise BadInput(f"key {key_id} is revoked or expired; create a new one instead")
        life = None if old.expires_at is None else (old.expires_at - old.created_at).total_seconds()
        new, secret = self._made(
            old.tenant, old.name, sorted(old.roles), sorted(old.scopes), by, life
        )
        return Issued(self._store.replace_key(old.id, new, grace_seconds), secret)

    def revoke(self, key_id: str, *, tenant: str | None = None, by: str = "client") -> ApiKey:
        """End a key at once; again changes nothing.

        Raises:
            NotFound: no such key for this tenant.
        """
        return self._store.revoke_key(key_id, tenant, by)

    def list(self, tenant: str | None = None) -> Sequence[ApiKey]:
        """Return keys, oldest first, revoked and expired ones too."""
        return self._store.list_keys(tenant)

    def derive(self, purpose: str) -> str:
        """Return a secret for another purpose, such as signing sessions; the same everywhere.

        Raises:
            MissingPepper: no pepper is set.
        """
        return self._mac(f"derive:{purpose}")

    def _made(
        self,
        tenant: str,
        name: str,
        roles: Sequence[str],
        scopes: Sequence[str],
        by: str,
        expires_in_seconds: float | None,
    ) -> tuple[NewKey, str]:
        # not from `chance`: tests may make run ids predictable, never secrets
        key_id, hidden = secrets.token_hex(8), secrets.token_urlsafe(32)
        new = NewKey(
            id=key_id,
            tenant=tenant,
            name=name,
            roles=roles,
            scopes=scopes,
            digest=self._digest(key_id, hidden),
            created_by=by,
            expires_in_seconds=expires_in_seconds,
        )
        return new, f"lgd_{key_id}_{hidden}"

    def _digest(self, key_id: str, hidden: str) -> str:
        return self._mac(f"key:{key_id}:{hidden}")

    def _mac(self, text: str) -> str:
        pepper = self._pepper or os.environ.get(PEPPER_VARIABLE, "")
        if not pepper:
            raise MissingPepper(PEPPER_VARIABLE)
        if len(pepper) < _MIN_PEPPER_CHARACTERS:
            raise BadInput(f"the pepper needs at least {_MIN_PEPPER_CHARACTERS} characters")
        return hmac.new(pepper.encode(), text.encode(), hashlib.sha256).hexdigest()


def may_decide(roles: Collection[str], needed: str | None) -> bool:
    """Tell whether somebody with these roles may decide a question for `needed`.

    Nobody named: a supervisor. An agent's key decides nothing, whatever a rule says.
    """
    wanted = needed or SUPERVISOR
    return wanted in roles and wanted != AGENT


def may_answer(question: Question, by: str, roles: Collection[str]) -> bool:
    """Tell whether somebody may decide a question: its role may, or whom it was handed to."""
    if question.person is None:
        return may_decide(roles, question.role)
    return by == question.person and not set(roles) <= {AGENT}


def may_hand_over(question: Question, by: str, roles: Collection[str]) -> bool:
    """Tell whether somebody may hand a question on: its role, who has it now, or an operator."""
    may = may_decide(roles, question.role) or may_answer(question, by, roles)
    return may or OPERATOR in roles


def check_approver(role: str) -> None:
    """Refuse a role that nobody could decide with.

    Raises:
        BadInput: no key has a role of that form, or it is the agents'.
    """
    if not _is_role(role) or role == AGENT:
        raise BadInput(
            f"{role!r} decides nothing. {_SHAPES['role']} An agent's key decides nothing."
        )


def _is_role(text: str) -> bool:
    return _ROLE.fullmatch(text) is not None


def _is_scope(text: str) -> bool:
    kind, colon, name = text.partition(":")
    return kind == "agent" and bool(colon) and bool(name) and name.isprintable()


def _check_each(what: str, given: Iterable[str], is_fine: Callable[[str], bool]) -> None:
    if isinstance(given, str):
        raise BadInput(f"{what}s are a list, not the text {given!r}")
    for one in given:
        if not isinstance(one, str) or len(one) > MAX_NAME_CHARACTERS or not is_fine(one):
            raise BadInput(f"{one!r} is no {what}. {_SHAPES[what]}")


_SHAPES = {
    "role": "A role is a lower-case word, such as agent, supervisor or operator.",
    "scope": "A scope reads agent:<name of an agent>.",
}
