"""SupportPilot's models: rules by default, any provider by configuration."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from langchain_core.callbacks import AsyncCallbackManagerForLLMRun, CallbackManagerForLLMRun
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.messages.ai import UsageMetadata
from langchain_core.outputs import ChatGeneration, ChatResult

from supportpilot.prompts import JOB_CHOOSE, JOB_CLASSIFY, JOB_DRAFT
from supportpilot.rules import invoices, replies, tickets
from supportpilot.settings import Settings

Route = Literal["fast", "smart"]

_TOKEN = re.compile(r"[\u3400-\u9fff]|\w+|[^\w\s]")


class RuleModel(BaseChatModel):
    """A chat model that answers SupportPilot's three jobs by rules: no keys, no network.

    The same messages always get the same answer. With a `calls` file it appends a line
    for each call before it answers, so that calls of killed processes are counted too.
    """

    route: Route = "fast"
    calls: Path | None = None

    @property
    def _llm_type(self) -> str:
        return "supportpilot-rules"

    @property
    def _identifying_params(self) -> dict[str, Any]:
        return {"model_name": f"rules-{self.route}"}

    def _generate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> ChatResult:
        job, answer = _job(messages)
        if self.calls is not None:
            at = datetime.now(UTC).isoformat()
            _append(self.calls, {"at": at, "job": job, "route": self.route, "pid": os.getpid()})
        text = answer(_facts(messages))
        message = AIMessage(
            text,
            usage_metadata=_usage(messages, text),
            response_metadata={"model_name": f"rules-{self.route}"},
        )
        return ChatResult(generations=[ChatGeneration(message=message)])

    async def _agenerate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: AsyncCallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> ChatResult:
        # A few regular expressions: not worth a thread.
        return self._generate(messages, stop, **kwargs)


def chat_models(settings: Settings) -> dict[str, BaseChatModel]:
    """Build the models of both routes, as the settings say.

    Raises:
        ValueError: a provider is named whose package is not installed, or that is unknown.
    """
    named: dict[Route, str | None] = {"fast": settings.model_fast, "smart": settings.model_smart}
    return {
        route: _provider(route, name) if name else RuleModel(route=route, calls=settings.calls)
        for route, name in named.items()
    }


def _provider(route: Route, name: str) -> BaseChatModel:
    variable = f"SUPPORTPILOT_MODEL_{route.upper()}"
    try:
        from langchain.chat_models import init_chat_model

        return init_chat_model(name)
    except ImportError as missing:
        raise ValueError(
            f"{variable}={name!r} needs a package that is not installed: {missing}"
        ) from missing


Answer = Callable[[Mapping[str, Any]], str]


def _job(messages: list[BaseMessage]) -> tuple[str, Answer]:
    system = next((str(m.text) for m in messages if m.type == "system"), "")
    for name, marker, answer in _JOBS:
        if system.startswith(marker):
            return name, answer
    raise ValueError(
        "the rule-based model knows only SupportPilot's own jobs; set SUPPORTPILOT_MODEL_FAST "
        "and SUPPORTPILOT_MODEL_SMART to 'provider:name' for a model that can do more"
    )


def _classify(facts: Mapping[str, Any]) -> str:
    return json.dumps({"category": tickets.category(facts["ticket"])})


def _choose(facts: Mapping[str, Any]) -> str:
    return json.dumps(
        invoices.choose(facts["ticket"], facts["invoices"], has_more=facts["has_more"])
    )


_JOBS: tuple[tuple[str, str, Answer], ...] = (
    ("classify", JOB_CLASSIFY, _classify),
    ("choose", JOB_CHOOSE, _choose),
    ("draft", JOB_DRAFT, replies.draft),
)


def _facts(messages: list[BaseMessage]) -> Mapping[str, Any]:
    human = next((str(m.text) for m in reversed(messages) if m.type == "human"), "{}")
    facts: Mapping[str, Any] = json.loads(human)
    return facts


def _usage(messages: list[BaseMessage], text: str) -> UsageMetadata:
    read = sum(_tokens(str(message.text)) for message in messages)
    written = _tokens(text)
    return {"input_tokens": read, "output_tokens": written, "total_tokens": read + written}


def _tokens(text: str) -> int:
    return len(_TOKEN.findall(text))


def _append(path: Path, line: Mapping[str, Any]) -> None:
    # One write to a descriptor opened for appending: lines of several processes don't mix,
    # and a process killed right after it has been counted.
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    try:
        os.write(descriptor, (json.dumps(line) + "\n").encode())
    finally:
        os.close(descriptor)
