"""The OpenAPI document is true: requests made from it, right and wrong, against the API."""

from __future__ import annotations

import os
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis.errors import Unsatisfiable
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.core.failures import FailureGroup
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    ignored_auth,
    negative_data_rejection,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
    unsupported_method,
)

from langgraph_durable import Decision
from tests.web.conftest import Site

EXAMPLES = int(os.environ.get("LANGGRAPH_DURABLE_TEST_EXAMPLES", "12"))

CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    negative_data_rejection,
    unsupported_method,
    ignored_auth,
]


@pytest.fixture
def database_url(sqlite_url: str) -> str:
    return sqlite_url


@pytest.fixture
def api(site: Site) -> Any:
    """The document, with ids that exist in half of the requests."""
    issued = site.durable.keys.create(
        tenant="t_a", roles=["agent", "supervisor", "operator"], name="all"
    )
    parked, ended = site.parked(), site.durable.submit("echo", 1, tenant="t_a")
    site.work()
    question = site.question(parked)
    large = {"verdict": "allow", "when": [{"argument": "amount_cents", "more_than": 10**9}]}
    site.durable.decide(site.question(site.parked()), Decision.approve("mei", rules=[large]))
    rule = site.durable.rules("t_a")[0].id
    ids = {"run_id": parked, "question_id": question, "key_id": "0" * 16, "rule_id": rule}
    schema = schemathesis.openapi.from_asgi("/v1/openapi.json", site.app)

    @schema.hook
    def map_path_parameters(context: Any, path_parameters: Any) -> Any:
        for name, value in (path_parameters or {}).items():
            if len(str(value)) % 2 == 0:
                follows = context.operation.path.endswith(
                    "/events"
                )  # a parked run's stream goes on
                path_parameters[name] = ended if follows else ids[name]
        return path_parameters

    @schema.hook
    def map_query(context: Any, query: Any) -> Any:
        if query and context.operation.path.endswith("/wait"):
            query.pop("timeout_seconds", None)  # the test has less time than a client may
        return query

    schema.secret = issued.secret
    return schema


@pytest.mark.timeout(300)
def test_the_api_keeps_to_its_document(api: Any) -> None:
    """Not by schemathesis' own pytest plugin: 4.32 doesn't work with pytest 9.2."""
    wrong: list[str] = []
    operations = [found.ok() for found in api.get_all_operations()]
    assert len(operations) >= 15
    for operation in operations:
        for mode in (GenerationMode.POSITIVE, GenerationMode.NEGATIVE):
            try:
                _try_out(operation, mode, api.secret)
            except Unsatisfiable:
                continue  # nothing about it can be wrong
            except (Exception, FailureGroup) as error:
                wrong.append(f"{operation.label} ({mode.value}): {error}")
    assert not wrong, "\n\n".join(wrong)


def _try_out(operation: Any, mode: GenerationMode, secret: str) -> None:
    @settings(
        max_examples=EXAMPLES,
        deadline=None,
        derandomize=True,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(operation.as_strategy(generation_mode=mode))
    def run(case: Any) -> None:
        case.call_and_validate(headers={"Authorization": f"Bearer {secret}"}, checks=CHECKS)

    run()


def test_every_route_documents_its_problems(site: Site) -> None:
    document = site.app.openapi()
    assert "Problem" in document["components"]["schemas"]
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            answers = operation["responses"]
            where = f"{method} {path}"
            assert {"401", "422", "500", "503"} <= answers.keys(), where
            assert operation["security"] == [{"ApiKey": []}], where
            if "{" in path:
                assert "404" in answers, where
            for status, answer in answers.items():
                if status >= "400":
                    assert list(answer["content"]) == ["application/problem+json"], where
