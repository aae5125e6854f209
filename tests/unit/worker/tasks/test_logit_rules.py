"""Models that scale or cap their logits: the rule is read and checked, and the loss is computed in chunks."""

from copy import deepcopy
from functools import partial

import pytest
import torch
from torch.nn import functional
from transformers import AutoModelForCausalLM, CohereConfig, Gemma2Config, GraniteConfig, LlamaConfig

from worker.tasks import language_loss
from worker.tasks.hf_forward import read_traits, read_traits_at_once, set_forward
from worker.tasks.language_loss import UNCHANGED, LogitRule, summed_loss_of

SIZES = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
}
MODELS = {
    "plain": (LlamaConfig(**SIZES), UNCHANGED),
    "granite": (GraniteConfig(**SIZES, logits_scaling=8.0), LogitRule(scale=0.125)),
    "cohere": (CohereConfig(**SIZES, logit_scale=0.25), LogitRule(scale=0.25)),
    "gemma2": (Gemma2Config(**SIZES, head_dim=8, final_logit_softcapping=0.05), LogitRule(cap=0.05)),
    # Its cap does not change the small logits of the probe, but it would change those of a trained model.
    "gemma2, high cap": (Gemma2Config(**SIZES, head_dim=8, final_logit_softcapping=30.0), LogitRule(cap=30.0)),
}
TOKENS = torch.arange(18).view(2, 9) * 7 % 64


@pytest.mark.parametrize(("config", "rule"), MODELS.values(), ids=MODELS)
def test_loss_in_chunks_is_that_of_the_models_own_logits(config, rule, monkeypatch):
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(deepcopy(config)).eval()
    traits = read_traits(model, packed=False)
    assert traits.logit_rule == read_traits_at_once(model, packed=False).logit_rule == rule
    set_forward(model, traits)
    own = functional.cross_entropy(model(TOKENS).flatten(0, 1), TOKENS.flatten(), reduction="sum")
    own.backward()
    expected = {name: parameter.grad for name, parameter in model.named_parameters()}
    monkeypatch.setattr(language_loss.summed_loss, "__kwdefaults__", {"max_logits": 5 * 64})
    head = model.get_output_embeddings()
    for computes_itself in (False, True):
        if computes_itself:
            # As a sharding unit does.
            head.summed_loss = partial(summed_loss_of, head)
        model.zero_grad()
        loss = model(TOKENS, TOKENS)
        loss.backward()
        assert loss.item() == pytest.approx(own.item(), rel=1e-6)
        for name, parameter in model.named_parameters():
            assert torch.linalg.norm(parameter.grad - expected[name]) <= 1e-5 * torch.linalg.norm(expected[name]) + 1e-7
