"""A chat model that answers what a test says."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

from langchain_core.callbacks import CallbackManagerForLLMRun
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.runnables import Runnable
from pydantic import Field, PrivateAttr

from langgraph_durable.testing.points import acting

Answers = Sequence[str | AIMessage] | Callable[[list[BaseMessage]], str | AIMessage]


class ScriptedModel(BaseChatModel):
    """A chat model that answers from a list, in order, or by a function of the messages.

    Messages that were asked before get the same answer again: a replay that asks twice does
    not shift the script. `asked` has the messages of every call.
    """

    answers: Any = Field(exclude=True)
    label: str = "scripted"
    _asked: list[list[BaseMessage]] = PrivateAttr(default_factory=list)
    _given: dict[str, str | AIMessage] = PrivateAttr(default_factory=dict)

    def __init__(self, answers: Answers, **options: Any) -> None:
        super().__init__(answers=answers, **options)  # type: ignore[call-arg]  # pydantic's own

    @property
    def asked(self) -> list[list[BaseMessage]]:
        """The messages of every call, in order."""
        return self._asked

    @property
    def calls(self) -> int:
        """How often the model was called."""
        return len(self._asked)

    @property
    def _llm_type(self) -> str:
        return "scripted"

    def bind_tools(self, tools: Any, **kwargs: Any) -> Runnable[Any, AIMessage]:
        """Take note of tools; the script says whether they are called."""
        return self.bind(tools=list(tools), **kwargs)

    def _generate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> ChatResult:
        with acting(f"call of model {self.label!r}"):
            self._asked.append(messages)
            answer = self._answer(messages)
        message = AIMessage(answer) if isinstance(answer, str) else answer.model_copy()
        return ChatResult(generations=[ChatGeneration(message=message)])

    async def _agenerate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: Any = None,
        **kwargs: Any,
    ) -> ChatResult:
        return self._generate(messages, stop, **kwargs)

    def _answer(self, messages: list[BaseMessage]) -> str | AIMessage:
        if callable(self.answers):
            said: str | AIMessage = self.answers(messages)
            return said
        question = json.dumps(
            [[m.type, m.content, getattr(m, "tool_calls", [])] for m in messages], default=str
        )
        if question not in self._given:
            if len(self._given) >= len(self.answers):
                raise AssertionError(
                    f"model {self.label!r} has a script of {len(self.answers)} answers and was "
                    f"asked something new: {messages[-1].content!r}"
                )
            self._given[question] = self.answers[len(self._given)]
        return self._given[question]
