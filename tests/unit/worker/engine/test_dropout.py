"""Detection of dropout, with which updates depend on the layout."""

import pytest

from trainyard.contract.spec.decoders import GptModel
from worker.engine.strategies.base import draws_dropout
from worker.tasks.gpt import Gpt


@pytest.mark.parametrize("rate", [0.0, 0.1])
def test_a_model_with_dropout_draws(rate):
    assert draws_dropout(Gpt(GptModel(width=16, heads=2, dropout=rate))) == (rate > 0)


@pytest.mark.parametrize(("name", "rate"), [("attention_dropout", 0.1), ("resid_pdrop", 0.1), ("resid_pdrop", 0.0)])
def test_a_configuration_with_dropout_draws_dropout(name, rate):
    class Config:
        def to_dict(self):
            return {name: rate, "dropout_layers": 3}

    model = Gpt(GptModel(width=16, heads=2))
    model.config = Config()
    assert draws_dropout(model) == (rate > 0)
