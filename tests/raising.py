"""Assertions on errors by what is stable in them: the key or the code, never the wording."""

from contextlib import contextmanager

import pytest

from fedzo.errors import FedzoError, InvalidValue


@contextmanager
def rejects(key):
    """Expect an InvalidValue about this key, and hand out what was caught."""
    with pytest.raises(InvalidValue) as caught:
        yield caught
    assert caught.value.key == key, str(caught.value)


@contextmanager
def fails(code, kind=FedzoError):
    """Expect an error of fedzo's with this code, and hand out what was caught."""
    with pytest.raises(kind) as caught:
        yield caught
    assert caught.value.code == code, str(caught.value)
