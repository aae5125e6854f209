"""The data set `digits` without scikit-learn."""

import pytest

from worker.core.errors import RefusedError
from worker.data.builtin import load_digits


def test_without_scikit_learn_the_error_names_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _name: None)
    with pytest.raises(RefusedError, match="scikit-learn") as refused:
        load_digits(0.2)
    assert "examples" in (refused.value.hint or "")
