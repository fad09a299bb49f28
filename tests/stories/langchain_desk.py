"""A desk of agents made by `create_agent`: a model that follows a script, tools that count."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import sqlalchemy as sa
from langchain.agents import create_agent
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage, ToolMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langgraph.pregel import Pregel

from langgraph_durable import Durable, Run, Worker

Turn = AIMessage | Callable[[Sequence[BaseMessage]], AIMessage]


class Scripted(BaseChatModel):
    """Answers by the number of its turn in the conversation; remembers how often it was asked."""

    script: list[Any]
    asked: list[str] = []  # noqa: RUF012  # pydantic copies it for each model
    bound: list[Any] = []  # noqa: RUF012

    @property
    def _llm_type(self) -> str:
        return "scripted"

    def bind_tools(self, tools: Sequence[Any], **kwargs: Any) -> Any:
        self.bound[:] = [getattr(tool, "tool_call_schema", tool) for tool in tools]
        return self.bind(tools=[getattr(tool, "name", "?") for tool in tools])

    def _generate(self, messages: list[BaseMessage], *args: Any, **kwargs: Any) -> ChatResult:
        turn = sum(isinstance(message, AIMessage) for message in messages)
        self.asked.append(f"turn {turn}")
        made = self.script[turn]
        message = made(messages) if callable(made) else made.model_copy(deep=True)
        return ChatResult(generations=[ChatGeneration(message=message)])


def calls(*made: tuple[str, dict[str, Any]], first: int = 1) -> AIMessage:
    """A model's message that calls tools; their ids are call_1, call_2, …"""
    return AIMessage(
        "",
        tool_calls=[
            {"name": name, "args": args, "id": f"call_{i}", "type": "tool_call"}
            for i, (name, args) in enumerate(made, start=first)
        ],
        usage_metadata={"input_tokens": 10, "output_tokens": 2, "total_tokens": 12},
    )


def last_words(messages: Sequence[BaseMessage]) -> AIMessage:
    """A model's last message: what the tools said."""
    said = [str(m.content) for m in messages if isinstance(m, ToolMessage)]
    return AIMessage(" | ".join(said))


class World:
    """What tools did, counted; it outlives every worker."""

    def __init__(self) -> None:
        self.done: Counter[str] = Counter()
        self.paid: list[tuple[int, str, int]] = []
        self._guard = threading.Lock()

    def do(self, what: str) -> int:
        with self._guard:
            self.done[what] += 1
            return self.done[what]


class Desk:
    """One database, and as many lives of an app and its worker as a test wants."""

    def __init__(self, url: str, mode: Any) -> None:
        self.url, self.mode = url, mode
        self.world = World()
        self.models: list[Scripted] = []
        self.options: dict[str, Any] = {}
        self.durable = Durable(url)

    def model(self, *script: Turn) -> Scripted:
        model = Scripted(script=list(script))
        self.models.append(model)
        return model

    @property
    def asked(self) -> int:
        """How often models were asked, over all lives."""
        return sum(len(model.asked) for model in self.models)

    def agent(self, script: Sequence[Turn], tools: Sequence[Any], *middleware: Any) -> None:
        """Make the app's agent anew, as a new process would."""
        self.graph(create_agent(self.model(*script), list(tools), middleware=list(middleware)))

    def graph(self, graph: Pregel[Any, Any, Any, Any] | Any) -> None:
        self.durable = Durable(self.url, **self.options)
        self.durable.graph("agent", graph, mode=self.mode)

    def submit(self, text: str = "hello") -> str:
        message = {"role": "user", "content": text}
        return self.durable.submit("agent", {"messages": [message]})

    def work(self, run_id: str) -> Run:
        """Let a new worker do what can be done."""
        Worker(self.durable).run_until_idle()
        return self.durable.get(run_id)

    def steal(self) -> None:
        """Let every lease have run out and been taken by somebody who then died."""
        engine = sa.create_engine(self.durable.url)
        with engine.begin() as tx:
            tx.exec_driver_sql(
                "UPDATE runs SET epoch = epoch + 1, lease_until = '2000-01-01 00:00:00+00:00' "
                "WHERE status = 'running'"
            )
        engine.dispose()

    def keys(self, run_id: str) -> list[str]:
        return [step.key for step in self.durable.journal(run_id)]


def said(run: Run) -> str:
    """The last message of a run's output."""
    assert run.output is not None, run.error
    return str(run.output["messages"][-1].content)
