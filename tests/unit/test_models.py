"""Model routes: who answers, in which form it is asked, and what comes back."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from langchain_core.exceptions import OutputParserException
from langchain_core.language_models.fake_chat_models import GenericFakeChatModel
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage
from langchain_core.tools import tool
from pydantic import BaseModel

from langgraph_durable.errors import BadInput, DurableError, UnknownRoute
from langgraph_durable.models import ModelRoutes, normalise, usage


class Category(BaseModel):
    """What a ticket is about."""

    name: str
    urgent: bool = False


def fake(*replies: str) -> GenericFakeChatModel:
    return GenericFakeChatModel(messages=iter([AIMessage(reply) for reply in replies]))


# --- messages --------------------------------------------------------------------------


@pytest.mark.parametrize(
    "messages",
    [
        "hello",
        ("user", "hello"),
        [("user", "hello")],
        {"role": "user", "content": "hello"},
        [{"role": "user", "content": "hello"}],
        HumanMessage("hello"),
        [HumanMessage("hello")],
        ["hello"],
    ],
)
def test_messages_of_every_usual_form_are_one(messages):
    assert normalise(messages) == [HumanMessage("hello")]


def test_roles_and_order_are_kept():
    given = [("system", "be kind"), {"role": "assistant", "content": "hi"}, HumanMessage("x")]
    assert normalise(given) == [SystemMessage("be kind"), AIMessage("hi"), HumanMessage("x")]


@pytest.mark.parametrize("messages", [[], None, 3, [object()], [{"text": "x"}], [("nobody", "x")]])
def test_what_is_no_message_is_refused(messages):
    with pytest.raises(BadInput):
        normalise(messages)


def test_usage_is_what_the_model_reported():
    reported = {"input_tokens": 3, "output_tokens": 4, "total_tokens": 7}
    assert usage(AIMessage("x", usage_metadata=reported)) == (3, 4)
    assert usage(AIMessage("x")) == usage(HumanMessage("x")) == (0, 0)


# --- routes ----------------------------------------------------------------------------


@pytest.mark.promise("S-65")
async def test_each_route_reaches_its_own_model():
    routes = ModelRoutes({"fast": fake("from fast"), "smart": fake("from smart")})
    assert (await routes.ask("smart", "x")).content == "from smart"
    assert (await routes.ask("fast", "x")).content == "from fast"
    assert routes.names == ["fast", "smart"]


@pytest.mark.promise("S-65")
@pytest.mark.parametrize("is_async", [True, False])
async def test_a_callers_own_function_is_a_model(is_async):
    seen: list[Any] = []
    loop_thread = threading.get_ident()

    def own(messages: Any, route: str) -> Any:
        seen.append((messages, route, threading.get_ident() == loop_thread))
        return "text" if route == "fast" else AIMessage("message")

    async def own_async(messages: Any, route: str) -> Any:
        return own(messages, route)

    model = own_async if is_async else own
    routes = ModelRoutes({"fast": model, "smart": model, "chat": fake("LangChain's")})
    assert await routes.ask("fast", [("user", "hi")]) == AIMessage("text")
    assert await routes.ask("smart", "hi") == AIMessage("message")
    assert (await routes.ask("chat", "hi")).content == "LangChain's"
    assert seen == [
        ([HumanMessage("hi")], "fast", is_async),
        ([HumanMessage("hi")], "smart", is_async),
    ]


async def test_a_sole_route_is_the_default_and_no_other_is():
    routes = ModelRoutes({"fast": fake("a", "b")})
    assert (await routes.ask("default", "x")).content == "a"
    assert "default" in routes
    with pytest.raises(UnknownRoute, match="Configured: fast"):
        await routes.ask("smart", "x")
    both = ModelRoutes({"fast": fake(), "smart": fake()})
    assert "default" not in both
    with pytest.raises(UnknownRoute):
        await both.ask("default", "x")
    with pytest.raises(UnknownRoute, match="none"):
        await ModelRoutes().ask("default", "x")


@pytest.mark.parametrize("model", [None, 3, {"base_url": "http://x"}, {"model": 3}])
def test_what_is_no_model_is_refused_at_once(model):
    with pytest.raises(BadInput, match="'fast'"):
        ModelRoutes({"fast": model})


@pytest.mark.parametrize(
    "model",
    [
        "nosuchprovider:x",
        "x",
        "openai:x",
        {"model": "openai:x", "api_key": "k", "temperature": "hot"},
    ],
)
async def test_a_model_that_cant_be_made_names_its_route(model, monkeypatch):
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    with pytest.raises(BadInput, match="'fast'"):
        await ModelRoutes({"fast": model}).ask("fast", "x")


async def test_a_model_by_name_without_langchain_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "langchain.chat_models", None)
    with pytest.raises(BadInput, match=r"pip install 'langgraph-durable\[langchain\]'"):
        await ModelRoutes({"fast": "openai:gpt"}).ask("fast", "x")


async def test_an_answer_that_is_none_is_refused():
    with pytest.raises(DurableError, match="answered with a dict"):
        await ModelRoutes({"fast": lambda m, r: {"a": 1}}).ask("fast", "x")


async def test_tools_and_response_format_are_one_or_the_other():
    with pytest.raises(BadInput, match="not both"):
        await ModelRoutes({"fast": fake("a")}).ask(
            "fast", "x", tools=[tool_schema()], response_format=Category
        )


async def test_a_function_is_given_tools_only_if_it_takes_them():
    def plain(messages: Any, route: str) -> str:
        return "x"

    def able(messages: Any, route: str, tools: Any = (), response_format: Any = None) -> Any:
        return Category(name="refund") if response_format else f"{len(tools)} tools"

    routes = ModelRoutes({"plain": plain, "able": able})
    assert (await routes.ask("able", "x", tools=[tool_schema()])).content == "1 tools"
    parsed = await routes.ask("able", "x", response_format=Category)
    assert parsed.additional_kwargs["parsed"] == {"name": "refund", "urgent": False}
    assert json.loads(parsed.text) == {"name": "refund", "urgent": False}
    with pytest.raises(BadInput, match="takes no tools="):
        await routes.ask("plain", "x", tools=[tool_schema()])
    with pytest.raises(BadInput, match="takes no response_format="):
        await routes.ask("plain", "x", response_format=Category)


async def test_a_chat_model_that_binds_no_tools_says_so():
    class Toolless(GenericFakeChatModel):
        pass

    with pytest.raises((BadInput, NotImplementedError)):
        await ModelRoutes({"fast": Toolless(messages=iter(()))}).ask(
            "fast", "x", tools=[tool_schema()]
        )


def tool_schema() -> dict[str, Any]:
    return {
        "type": "function",
        "function": {
            "name": "refund",
            "description": "Pay back.",
            "parameters": {
                "type": "object",
                "properties": {"invoice": {"type": "string"}},
                "required": ["invoice"],
            },
        },
    }


@tool
def list_invoices(customer: str) -> str:
    """List the invoices of a customer."""
    return customer


# --- an OpenAI-compatible endpoint, over HTTP ------------------------------------------


class Endpoint(BaseHTTPRequestHandler):
    """Speaks enough of the chat-completions protocol, and remembers what it was asked."""

    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        server: Any = self.server
        server.asked.append((self.path, self.headers.get("Authorization"), asked))
        message: dict[str, Any] = {"role": "assistant", "content": server.content}
        if asked.get("tools"):
            name = asked["tools"][0]["function"]["name"]
            arguments = server.content if name == "Category" else '{"invoice": "inv_2"}'
            called = {"name": name, "arguments": arguments}
            message["content"] = None
            message["tool_calls"] = [{"id": "call_1", "type": "function", "function": called}]
        body = {
            "id": "chatcmpl-1",
            "object": "chat.completion",
            "created": 1,
            "model": asked["model"],
            "choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
            "usage": {"prompt_tokens": 11, "completion_tokens": 5, "total_tokens": 16},
        }
        data = json.dumps(body).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing."""


@pytest.fixture
def endpoint() -> Iterator[Any]:
    server: Any = ThreadingHTTPServer(("127.0.0.1", 0), Endpoint)
    server.daemon_threads = True
    server.asked, server.content = [], "hello"
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def remote(endpoint: Any) -> ModelRoutes:
    url = f"http://127.0.0.1:{endpoint.server_port}/v1"
    given = {"model": "openai:my-model", "base_url": url, "api_key": "k", "max_retries": 0}
    return ModelRoutes({"fast": given})


async def test_a_route_can_be_an_openai_compatible_endpoint(remote, endpoint):
    reply = await remote.ask("fast", [("system", "be kind"), ("user", "hi")])
    assert (reply.content, usage(reply)) == ("hello", (11, 5))
    ((path, auth, asked),) = endpoint.asked
    assert (path, auth, asked["model"]) == ("/v1/chat/completions", "Bearer k", "my-model")
    assert [m["role"] for m in asked["messages"]] == ["system", "user"]
    assert "tools" not in asked


async def test_tools_of_every_form_reach_the_model(remote, endpoint):
    reply = await remote.ask("fast", "hi", tools=[tool_schema(), list_invoices])
    assert reply.tool_calls[0]["name"] == "refund"
    assert reply.tool_calls[0]["args"] == {"invoice": "inv_2"}
    names = [t["function"]["name"] for t in endpoint.asked[0][2]["tools"]]
    assert names == ["refund", "list_invoices"]


async def test_a_parsed_answer_is_data_beside_the_raw_message(remote, endpoint):
    endpoint.content = '{"name": "refund", "urgent": true}'
    reply = await remote.ask("fast", "hi", response_format=Category)
    assert isinstance(reply, AIMessage)
    assert reply.additional_kwargs["parsed"] == {"name": "refund", "urgent": True}
    assert usage(reply) == (11, 5)
    by_schema = await remote.ask("fast", "hi", response_format=Category.model_json_schema())
    assert by_schema.additional_kwargs["parsed"] == {"name": "refund", "urgent": True}


async def test_an_answer_that_doesnt_parse_is_an_error_to_retry(remote, endpoint):
    endpoint.content = '{"nome": 1}'
    with pytest.raises((OutputParserException, ValueError)):
        await remote.ask("fast", "hi", response_format=Category)
