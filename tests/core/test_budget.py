from concurrent.futures import ThreadPoolExecutor

import pytest

from fedzo.core.budget import Meter
from fedzo.errors import BudgetSpent
from raising import rejects


def test_without_a_budget_everything_is_granted_and_counted():
    meter = Meter()
    assert [meter.take(5), meter.take(7)] == [5, 7]
    meter.require(7, 7)
    assert meter.queries == 12


def test_the_budget_is_spent_to_the_last_query_and_no_further():
    meter = Meter(max_queries=10)
    assert [meter.take(6), meter.take(6), meter.take(6)] == [6, 4, 0]
    assert meter.queries == 10
    with pytest.raises(BudgetSpent, match="budget of 10 queries is spent"):
        meter.require(0, 6)


def test_threads_together_are_granted_exactly_the_budget():
    meter = Meter(max_queries=10_001)
    with ThreadPoolExecutor(8) as threads:
        granted = list(threads.map(lambda _: meter.take(3), range(5_000)))
    assert sum(granted) == meter.queries == 10_001


@pytest.mark.parametrize("budget", [0, -1, 2.5, True])
def test_a_budget_is_a_whole_number_of_queries(budget):
    with rejects("max_queries"):
        Meter(budget)
