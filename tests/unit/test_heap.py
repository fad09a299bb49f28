"""How a serving worker has Python search for cyclic garbage."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from itertools import permutations

import pytest

from langgraph_durable.worker.heap import OBJECTS, searched_seldom


@pytest.fixture(autouse=True)
def as_it_was() -> Iterator[None]:
    thresholds, was_on = gc.get_threshold(), gc.isenabled()
    yield
    gc.set_threshold(*thresholds)
    gc.enable() if was_on else gc.disable()


def test_what_was_loaded_is_left_out_and_the_rest_is_searched_seldom():
    gc.set_threshold(700, 10, 10)
    before = gc.get_freeze_count()
    with searched_seldom():
        assert gc.get_threshold() == (OBJECTS, 10, 10)
        assert gc.get_freeze_count() > before + 10_000
    assert gc.get_threshold() == (700, 10, 10)
    assert gc.get_freeze_count() == 0


@pytest.mark.parametrize("threshold", [0, 700])
def test_an_application_that_switched_the_search_off_is_left_alone(threshold: int):
    gc.set_threshold(threshold, 10, 10)
    if threshold:
        gc.disable()
    with searched_seldom():
        assert gc.get_threshold() == (threshold, 10, 10)


def test_one_that_made_it_rarer_keeps_its_number():
    gc.set_threshold(50_000, 10, 10)
    with searched_seldom():
        assert gc.get_threshold() == (50_000, 10, 10)


@pytest.mark.parametrize("leaving", list(permutations(range(3))))
def test_the_last_of_several_workers_undoes_it(leaving: tuple[int, ...]):
    gc.set_threshold(700, 10, 10)
    workers = [searched_seldom() for _ in leaving]
    for worker in workers:
        worker.__enter__()
    for n in leaving:
        assert gc.get_threshold() == (OBJECTS, 10, 10)
        assert gc.get_freeze_count() > 0
        workers[n].__exit__(None, None, None)
    assert gc.get_threshold() == (700, 10, 10)
    assert gc.get_freeze_count() == 0


def test_what_the_application_has_frozen_stays_so():
    gc.freeze()
    try:
        frozen = gc.get_freeze_count()
        with searched_seldom():
            pass
        assert gc.get_freeze_count() >= frozen - 100  # some of it was freed meanwhile
    finally:
        gc.unfreeze()
