"""Secrets: what a run may use, and nothing may keep.

A provider is asked by name on every pass, on whatever worker makes it, so a secret is there
again after a resume though it was never stored. What it gave is handed out as a `Secret`,
which no repr, format, JSON or pickle shows, and which the journal refuses. Should its text
get into a record all the same (a tool echoes it, an error quotes it), `Revealed` puts a marker
in its place.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, NoReturn, TypeAlias

from pydantic import SecretStr

#: Shorter ones can't be told from other text, and are not looked for in what is recorded.
MIN_HIDDEN_CHARACTERS = 6


class Secret(SecretStr):
    """A secret that a run has read: `get_secret_value()` is the one way to its text."""

    def __reduce_ex__(self, _protocol: Any) -> NoReturn:
        """Refuse to be pickled: pydantic's own would write the text out."""
        raise TypeError("a secret can't be pickled: read it again with ctx.secret(name)")

    def __format__(self, spec: str) -> str:
        """Format the stars."""
        return format(str(self), spec)

    def __copy__(self) -> Secret:
        """Return itself: it never changes."""
        return self

    def __deepcopy__(self, _memo: Any) -> Secret:
        """Return itself: it never changes."""
        return self


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which secret is asked for: its name, and by whom."""

    name: str
    tenant: str
    agent: str
    run_id: str


Found: TypeAlias = str | SecretStr | None
#: Returns the secret, or None (or raises LookupError) if there is none. Sync ones run in a thread.
SecretProvider: TypeAlias = Callable[[Wanted], Found | Awaitable[Found]]


class EnvSecrets:
    """Secrets of the environment: `crm_token` is `<prefix>CRM_TOKEN`, the same for all tenants."""

    def __init__(self, prefix: str = "") -> None:
        self._prefix = prefix

    def __call__(self, wanted: Wanted) -> str | None:
        """Read the variable; one that is empty counts as missing."""
        return os.environ.get(self._variable(wanted.name)) or None

    def _variable(self, name: str) -> str:
        return self._prefix + re.sub(r"[^A-Z0-9]", "_", name.upper())

    def __repr__(self) -> str:
        """Say where it looks."""
        return f"EnvSecrets({self._prefix!r}), which reads the variables {self._prefix}<NAME>"


class MappingSecrets:
    """Secrets of a mapping, by `name`, `(tenant, name)` or `(tenant, agent, name)`.

    The most specific one counts.
    """

    def __init__(self, secrets: Mapping[str | tuple[str, ...], str | SecretStr]) -> None:
        self._secrets = dict(secrets)

    def __call__(self, wanted: Wanted) -> Found:
        """Look the secret up for this tenant and agent, this tenant, everybody."""
        of_tenant = (wanted.tenant, wanted.name)
        for key in ((wanted.tenant, wanted.agent, wanted.name), of_tenant, wanted.name):
            if key in self._secrets:
                return self._secrets[key]
        return None

    def __repr__(self) -> str:
        """Say what it is, and nothing that it holds."""
        return f"MappingSecrets of {len(self._secrets)}"


class Revealed:
    """The secrets that one pass has read: false while there are none, and then it costs nothing."""

    def __init__(self) -> None:
        self._secrets: dict[str, Secret] = {}
        self._marks: dict[str, str] = {}  # a text to look for -> what stands in its place
        self._pattern: re.Pattern[str] | None = None

    def __bool__(self) -> bool:
        """Whether any was read."""
        return bool(self._secrets)

    def get(self, name: str) -> Secret | None:
        """Return a secret that this pass has read already."""
        return self._secrets.get(name)

    def add(self, name: str, secret: Secret) -> None:
        """Take note of a secret: from here on its text is not recorded."""
        self._secrets[name] = secret
        text = secret.get_secret_value()
        if len(text) >= MIN_HIDDEN_CHARACTERS:
            quoted = json.dumps(text)[1:-1]  # inside JSON that is itself a text
            escaped = text.encode("unicode_escape").decode("ascii")  # see `values`, "str"
            for form in (text, quoted, escaped, repr(text)[1:-1]):
                self._marks[form] = f"[secret {name}]"
            longest_first = sorted(self._marks, key=len, reverse=True)
            self._pattern = re.compile("|".join(map(re.escape, longest_first)))

    def hide(self, text: str) -> str:
        """Return a text with markers in place of secrets."""
        if self._pattern is None:
            return text
        return self._pattern.sub(lambda found: self._marks[found[0]], text)

    def hide_json(self, text: str) -> str:
        """Return encoded JSON with markers inside its texts; as it is if there is nothing to hide."""
        if self._pattern is None or not self._may_hold(text):
            return text
        return json.dumps(self._hidden(json.loads(text)), separators=(",", ":"))

    def hide_plain(self, value: Any) -> Any:
        """Return plain JSON data with markers inside its texts."""
        return self._hidden(value) if self._pattern is not None else value

    def _may_hold(self, text: str) -> bool:
        # JSON escapes once what is escaped already, so both depths are looked for
        return any(form in text or json.dumps(form)[1:-1] in text for form in self._marks)

    def _hidden(self, node: Any) -> Any:
        if isinstance(node, str):
            return self.hide(node)
        if isinstance(node, Mapping):
            return {self.hide(key): self._hidden(item) for key, item in node.items()}
        if isinstance(node, list | tuple):
            return [self._hidden(item) for item in node]
        return node
