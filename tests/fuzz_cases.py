"""How many cases a fuzzer tries: a short slice in the tests, as many as asked for by `make fuzz`.

The cases are the same in every run: hypothesis derives them from the test itself.
"""

import os

from hypothesis import HealthCheck, Phase, settings

FUZZ = settings(
    max_examples=int(os.environ.get("FEDZO_FUZZ_CASES", "12")),
    derandomize=True,
    deadline=20_000,  # milliseconds: what takes longer hangs
    database=None,
    phases=[Phase.generate],  # a case that fails is shown as it is: shrinking takes minutes
    suppress_health_check=list(HealthCheck),
)
