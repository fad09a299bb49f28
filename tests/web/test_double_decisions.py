"""H-05: one question is decided twice at one instant, by two API processes."""

from __future__ import annotations

import os
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from langgraph_durable import Status
from tests.web.conftest import Site
from tests.web.web_processes import api_processes, killed_api

ROUNDS = int(os.environ.get("LANGGRAPH_DURABLE_TEST_ROUNDS", "50"))


def race(clients: list[Any], paths: list[str], bodies: list[Any]) -> list[Any]:
    """Post each body to its path by its client, at the same instant."""
    answers: list[Any] = [None] * len(bodies)
    start = threading.Barrier(len(bodies))

    def post(i: int) -> None:
        start.wait()
        answers[i] = clients[i].post(paths[i], json=bodies[i])

    threads = [threading.Thread(target=post, args=(i,)) for i in range(len(bodies))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return answers


def parked_runs(site: Site) -> list[str]:
    ids = [site.durable.submit("refund", {"ticket": "x"}, tenant="t_a") for _ in range(ROUNDS)]
    site.work()
    return ids


@pytest.mark.promise("H-05")
@pytest.mark.timeout(600)
def test_two_clients_decide_one_question_at_the_same_instant(site: Site) -> None:
    headers = {"Authorization": f"Bearer {site.secret('supervisor')}"}
    approve, reject = {"choice": "approve"}, {"choice": "reject", "reason": "no"}
    same, against = parked_runs(site), parked_runs(site)
    approved: set[str] = set()
    with api_processes(site.durable.url, 2) as addresses:
        clients = [httpx.Client(base_url=a, headers=headers, timeout=60) for a in addresses]
        for run_id in same:
            path = f"/v1/questions/{site.question(run_id)}/decision"
            first, second = race(clients, [path] * 2, [approve, approve])
            assert (first.status_code, second.status_code) == (200, 200), (first.text, second.text)
            assert first.json() == second.json()
            approved.add(run_id)
        for run_id in against:
            path = f"/v1/questions/{site.question(run_id)}/decision"
            answers = race(clients, [path] * 2, [approve, reject])
            assert sorted(answer.status_code for answer in answers) == [200, 409], [
                answer.text for answer in answers
            ]
            winner = next(answer for answer in answers if answer.status_code == 200)
            loser = next(answer for answer in answers if answer.status_code == 409)
            choice = winner.json()["decision"]["choice"]
            assert (loser.json()["state"], loser.json()["decided"]) == ("decided", choice)
            if choice == "approve":
                approved.add(run_id)
        site.work()
        for run_id in (same[0], against[0]):
            question = site.durable.questions(run_id=run_id, state=None)[0]
            made = question.decision
            assert made is not None
            other = reject if made.choice == "approve" else approve
            late = clients[0].post(f"/v1/questions/{question.id}/decision", json=other)
            assert late.status_code == 409
        for client in clients:
            client.close()

    assert sorted(key for key, _ in site.ledger) == sorted(f"{run}:refund" for run in approved)
    for run_id in same + against:
        assert site.durable.get(run_id).status is Status.SUCCEEDED
        decided = [e for e in site.durable.events(run_id) if e.type == "question_decided"]
        assert len(decided) == 1


@pytest.mark.promise("H-05")
@pytest.mark.timeout(600)
def test_many_double_decisions_at_once_are_one_each_and_no_error(site: Site) -> None:
    runs = parked_runs(site)
    paths = [f"/v1/questions/{site.question(run_id)}/decision" for run_id in runs]
    headers = {"Authorization": f"Bearer {site.secret('supervisor')}"}
    with api_processes(site.durable.url, 2) as addresses:
        clients = [httpx.Client(base_url=a, headers=headers, timeout=90) for a in addresses]
        with ThreadPoolExecutor(max_workers=40) as pool:
            calls = [
                pool.submit(client.post, path, json={"choice": "approve"})
                for path in paths
                for client in clients
            ]
            statuses = {call.result().status_code for call in calls}
        for client in clients:
            client.close()
    site.work()

    assert statuses == {200}
    assert sorted(key for key, _ in site.ledger) == sorted(f"{run_id}:refund" for run_id in runs)
    for run_id in runs:
        decided = [e for e in site.durable.events(run_id) if e.type == "question_decided"]
        assert len(decided) == 1


@pytest.mark.promise("H-05")
def test_a_decision_against_a_cancel_leaves_one_of_them(site: Site) -> None:
    runs = parked_runs(site)[:20]
    supervisor, operator = site.as_("supervisor"), site.as_("operator")
    for run_id in runs:
        answers = race(
            [supervisor, operator],
            [f"/v1/questions/{site.question(run_id)}/decision", f"/v1/runs/{run_id}/cancel"],
            [{"choice": "approve"}, None],
        )
        assert answers[1].status_code == 200
        assert answers[0].status_code in (200, 409)
        assert site.durable.get(run_id).status is Status.CANCELLED
    site.work()
    assert not {key.split(":")[0] for key, _ in site.ledger} & set(runs)


@pytest.mark.promise("S-81")
def test_a_question_outlives_the_api_that_showed_it(site: Site) -> None:
    run_id = site.parked()
    headers = {"Authorization": f"Bearer {site.secret('supervisor')}"}
    with killed_api(site.durable.url) as address:
        shown = httpx.get(f"{address}/v1/questions", headers=headers).json()["items"]
    with api_processes(site.durable.url) as (address,):
        path = f"/v1/questions/{shown[0]['id']}/decision"
        answer = httpx.post(address + path, headers=headers, json={"choice": "approve"})
        assert answer.status_code == 200, answer.text
    site.work()
    assert site.ledger == [(f"{run_id}:refund", 1200)]
