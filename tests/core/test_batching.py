"""Devices that ask together: one call, in the order of the devices, whatever the threads do."""

import threading
import time

import numpy as np
import pytest

from fedzo.core.batching import QueryBatcher
from fedzo.errors import BudgetSpent


def test_questions_of_one_moment_are_one_call_in_the_devices_order():
    calls = []

    def answer(asked):
        calls.append([int(question) for question in asked])
        return [question + 100 for question in asked]

    batcher = QueryBatcher(answer, most=4)

    def work(device):
        time.sleep(0.002 * (4 - device % 4))  # the last comes first
        first = batcher.ask(np.array(device))
        return device if device == 1 else int(batcher.ask(first))  # one has done with the first

    assert list(batcher.map(work, range(6))) == [200, 1, 202, 203, 204, 205]
    assert calls == [[0, 1, 2, 3], [100, 102, 103], [4, 5], [104, 105]]


def test_outside_of_a_map_a_question_is_asked_by_itself():
    assert QueryBatcher(lambda asked: [question * 2 for question in asked], 4).ask(np.array(3)) == 6


def test_an_answer_that_is_an_exception_is_raised_where_it_was_asked():
    def answer(asked):
        return [asked[0], *[BudgetSpent("spent")] * (len(asked) - 1)]

    batcher, heard = QueryBatcher(answer, most=3), []

    def work(device):
        try:
            return int(batcher.ask(np.array(device)))
        except BudgetSpent:
            heard.append(device)
            raise

    results = batcher.map(work, range(3))
    assert next(results) == 0
    with pytest.raises(BudgetSpent):
        next(results)
    assert sorted(heard) == [1, 2]


def test_whoever_fails_or_stops_reading_leaves_no_work_behind():
    down, working = [True], []

    def answer(asked):
        if down[0]:
            raise ZeroDivisionError
        return asked

    batcher = QueryBatcher(answer, most=3)

    def work(device):
        working.append(device)
        try:
            return batcher.ask(np.array(device))
        finally:
            working.remove(device)

    with pytest.raises(ZeroDivisionError):
        list(batcher.map(work, range(3)))
    assert not working
    down[0] = False
    reader = batcher.map(work, range(6))
    next(reader)
    reader.close()
    assert not working
    assert list(batcher.map(work, range(4))) == [0, 1, 2, 3]  # the threads are free again


def test_threads_are_kept_from_round_to_round_and_end_when_closed():
    batcher = QueryBatcher(lambda asked: asked, most=3)
    before = set(threading.enumerate())

    def mapped():
        list(batcher.map(lambda device: batcher.ask(np.array(device)), range(3)))
        return set(threading.enumerate()) - before

    first = mapped()
    assert len(first) == 3
    assert mapped() == first
    batcher.close()
    assert not any(thread.is_alive() for thread in first)
    assert len(mapped()) == 3  # others, if they are wanted again
    batcher.close()
