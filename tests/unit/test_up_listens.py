"""The socket of `up`: connections that it accepts send small answers at once."""

from __future__ import annotations

import socket

import pytest

from langgraph_durable.errors import DurableError
from langgraph_durable.up import listen


def test_an_answer_does_not_wait_for_an_acknowledgement() -> None:
    with listen("127.0.0.1", 0) as listener:
        address = listener.getsockname()
        with socket.create_connection(address):
            accepted, _ = listener.accept()
            with accepted:
                assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
        with pytest.raises(DurableError, match=f"127.0.0.1:{address[1]}"):
            listen("127.0.0.1", address[1])
