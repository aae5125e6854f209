"""The builtin Llama: it computes what transformers does, in packed rows and in pieces too, and compiles whole."""

import pytest
import torch
from torch._dynamo.utils import counters
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaForCausalLM

from tests.support import varlen  # noqa: F401 - the kernel, on the CPU
from tests.support.hf import texts
from trainyard.contract.spec.training_spec import parse_spec
from worker.data.examples import IGNORED_LABEL
from worker.engine.activations import checkpoint_activations
from worker.engine.strategies.units import layers
from worker.export.model import save_model
from worker.tasks import language_loss
from worker.tasks.llama import Llama

SIZES = {"name": "llama", "layers": 2, "width": 32, "heads": 4, "key_value_heads": 2, "context": 64, "vocab": 260}
TOKENS = torch.arange(48).view(2, 24) * 7 % 256


def build(**changes):
    spec = parse_spec(
        {
            "task": "causal_lm",
            "model": {"source": "builtin", **SIZES, **changes},
            "data": {"source": "builtin", "name": "stdlib"},
            "steps": 1,
        }
    )
    torch.manual_seed(3)
    model = Llama(spec.model)
    with torch.no_grad():
        # Norms that differ from one, and weights large enough that the positions count.
        for parameter in model.parameters():
            parameter.mul_(4 if parameter.ndim == 2 else 1 + 0.3 * torch.rand_like(parameter))
    return model, spec


def exported(folder, model, spec):
    state = model.state_dict()
    if spec.model.tied:
        del state["lm_head.weight"]
    save_model(folder, state, spec)
    return folder


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("changes", [{}, {"key_value_heads": None}, {"rope_theta": 5e5, "norm_eps": 1e-3}])
def test_export_computes_the_same_logits_in_transformers(tmp_path, tied, changes):
    model, spec = build(tied=tied, **changes)
    loaded, report = AutoModelForCausalLM.from_pretrained(
        exported(tmp_path, model, spec), dtype=torch.float32, output_loading_info=True
    )
    assert type(loaded) is LlamaForCausalLM
    assert not any(report.values()), report
    with torch.no_grad():
        assert (loaded(input_ids=TOKENS).logits - model(TOKENS)).abs().max() <= 1e-5
    assert loaded.config.tie_word_embeddings == tied
    assert loaded.generation_config.eos_token_id == 0


def test_exported_tokenizer_encodes_bytes(tmp_path):
    tokenizer = AutoTokenizer.from_pretrained(exported(tmp_path, *build()))
    for text in ("a b\n\tc  d", "Größe Ā 漢字 🙂", "".join(map(chr, range(1, 256))), texts(1)[0]["text"]):
        assert tokenizer(text)["input_ids"] == list(text.encode())
        assert tokenizer.decode(list(text.encode())) == text


class TestPackedRows:
    POSITIONS = torch.cat((torch.arange(9), torch.arange(11), torch.arange(4)))[None]

    @torch.no_grad()
    def test_examples_of_a_row_have_the_logits_they_have_alone(self):
        model, _ = build()
        row = TOKENS[:1]
        together = model(row, positions=self.POSITIONS)
        parts = torch.tensor_split(row, (9, 20), dim=1)
        torch.testing.assert_close(together, torch.cat([model(part) for part in parts], dim=1), rtol=0, atol=2e-6)

    @torch.no_grad()
    def test_one_example_in_a_row_has_the_logits_of_causal_attention(self):
        model, _ = build()
        positions = torch.arange(24).expand(2, -1)
        torch.testing.assert_close(model(TOKENS, positions=positions), model(TOKENS), rtol=0, atol=2e-6)


@pytest.mark.parametrize("tied", [True, False])
def test_loss_in_chunks_has_the_same_gradients(tied, monkeypatch):
    def run():
        model, _ = build(tied=tied)
        labels = TOKENS.roll(-1, dims=1)
        labels[0, 3:9] = IGNORED_LABEL
        loss = model(TOKENS, labels)
        loss.backward()
        return loss.item(), {name: parameter.grad for name, parameter in model.named_parameters()}

    whole, gradients = run()
    monkeypatch.setattr(language_loss.summed_loss, "__kwdefaults__", {"max_logits": 5 * SIZES["vocab"]})
    result, chunks = run()
    assert result == pytest.approx(whole, rel=1e-6)
    for name, gradient in gradients.items():
        assert torch.linalg.norm(chunks[name] - gradient) <= 2e-6 * torch.linalg.norm(gradient), name


def test_positions_keep_their_digits_in_bf16():
    model, _ = build(rope_theta=1e4)
    layer = model.model.layers[0].self_attn
    x, positions = torch.randn(1, 2, 32), torch.tensor([[0, 1], [1000, 1001]])
    with torch.no_grad():
        near, far = (layer.bfloat16()(x.bfloat16(), row[None], None).float() for row in positions)
    assert torch.linalg.norm(far - near) <= 0.02 * torch.linalg.norm(near)


@pytest.mark.parametrize(
    ("checkpointing", "packed"),
    [*((how, packed) for how in ("none", "selective", "full") for packed in ("no", "mask")), ("selective", "kernel")],
)
def test_layers_compile_once_and_without_a_graph_break(checkpointing, packed):
    torch._dynamo.reset()
    counters.clear()
    model, _ = build(layers=3)
    if checkpointing != "none":
        checkpoint_activations(model, checkpointing)
    for name in layers(model):
        model.get_submodule(name).compile(backend="aot_eager", fullgraph=True)
    if packed == "kernel":
        model.take_boundaries()
    positions = torch.arange(12).repeat(2, 2) if packed != "no" else None
    model(TOKENS, TOKENS, positions, ends=torch.tensor([[12, 24]] * 2, dtype=torch.int32)).backward()
    assert counters["stats"]["unique_graphs"] == 1
    assert not counters["graph_break"]
    assert all(parameter.grad is not None for parameter in model.parameters())
