"""Every pair of parts and settings, and triples of them: they run, or are rejected at once.

The quick tests try a few; `make fuzz` tries a slice of triples as long as its number of cases.
"""

import itertools

import pytest

from combinations import AXES, CONFIGS, arguments, check, tuples
from fuzz_cases import FUZZ

SLICES = 8  # shared by the workers
SMALL = {key: values for key, values in AXES.items() if key != "config"}


def cases():
    """Return distinct pairs of all axes, over every configuration, and then triples."""
    found = {}
    over = ({"config": config} for config in CONFIGS)
    pairs = ({**one, **case} for case in tuples(2, SMALL) for one in [{"config": "quadratic"}])
    single = ({**config, **case} for config in over for case in tuples(1, SMALL))
    for case in itertools.chain(pairs, single, tuples(3, SMALL)):
        if len(found) >= FUZZ.max_examples:
            break
        found.setdefault(tuple(arguments(case)), case)
    return list(found.values())


@pytest.mark.parametrize("part", range(SLICES))
def test_combinations(part, tmp_path):
    for case in cases()[part::SLICES]:
        check(case, tmp_path / "run")
