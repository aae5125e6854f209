"""The loss of a linear head in 16 bits: its error, its chunks, and the heads that it is for."""

from functools import partial

import pytest
import torch
from torch import nn

from bench._bill import counting
from trainyard.contract.spec.decoders import GptModel
from trainyard.contract.spec.optimization import Loss
from worker.data.examples import IGNORED_LABEL
from worker.engine.frozen_base import FrozenLinear
from worker.tasks import language_loss, linear_loss
from worker.tasks.cross_entropy import PLAIN, Counted, summed_terms
from worker.tasks.gpt import Gpt
from worker.tasks.language_loss import LogitRule, summed_loss, summed_loss_of
from worker.tasks.linear_loss import LinearHead, compute_dtype, linear_head, tokens_of_chunk

TOKENS, WIDTH, VOCABULARY = 300, 32, 1000
TERMS = [PLAIN, Loss(label_smoothing=0.1), Loss(z_loss=0.01), Loss(label_smoothing=0.2, z_loss=0.01)]


def problem(*, bias=False, dtype=torch.float32):
    generator = torch.Generator().manual_seed(1)
    head = nn.Linear(WIDTH, VOCABULARY, bias=bias)
    for parameter in head.parameters():
        parameter.data = torch.randn(parameter.shape, generator=generator).mul_(0.3).to(dtype)
    hidden = torch.randn(1, TOKENS, WIDTH, generator=generator).to(dtype).requires_grad_()
    labels = torch.randint(VOCABULARY, (1, TOKENS), generator=generator)
    labels[0, 20:60] = IGNORED_LABEL
    return head, hidden, labels


def run(terms=PLAIN, *, chunk, plain=True, factor=1 / 13, bias=False):
    """Return the loss and the gradients of hidden states, weight and bias."""
    head, hidden, labels = problem(bias=bias)
    function = head if plain else lambda x: head(x)
    with torch.autocast("cpu", torch.bfloat16):
        values = summed_loss(
            hidden, labels, function, VOCABULARY, head.parameters(), terms, max_logits=-(-chunk * VOCABULARY // 8)
        )
    loss = values[0] if values.ndim else values
    (loss * factor).backward()
    return values.detach(), [hidden.grad, *(parameter.grad for parameter in head.parameters())]


def exact(terms, *, factor=1 / 13):
    """Return the same of the values in bf16, computed in fp64."""
    head, hidden, labels = problem()
    hidden, weight = (x.detach().bfloat16().double().requires_grad_() for x in (hidden, head.weight))
    logits = hidden[0] @ weight.t()
    counted, targets = labels[0] != IGNORED_LABEL, labels[0].clamp(min=0)[:, None]
    normalizer = logits.logsumexp(dim=-1)
    chosen = (1 - terms.label_smoothing) * logits.gather(-1, targets)[:, 0]
    losses = normalizer - chosen - terms.label_smoothing * logits.mean(dim=-1) + terms.z_loss * normalizer**2
    loss = losses[counted].sum()
    (loss * factor).backward()
    return loss.detach(), [hidden.grad, weight.grad]


def error(value, reference):
    return float(torch.linalg.norm(value.double() - reference) / torch.linalg.norm(reference))


@pytest.mark.parametrize("terms", TERMS)
def test_error_against_fp64_is_less_than_that_of_sums_in_bf16(terms):
    loss, (of_hidden, of_weight) = exact(terms)
    result, (hidden, weight) = run(terms, chunk=32)
    _, (former_hidden, former_weight) = run(terms, chunk=32, plain=False)
    assert float(result) == pytest.approx(float(loss), rel=5e-5)
    assert error(weight, of_weight) < error(former_weight, of_weight) < 5e-3
    assert error(hidden, of_hidden) <= 1.01 * error(former_hidden, of_hidden) < 5e-3


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("terms", TERMS)
def test_chunks_change_neither_the_loss_nor_gradients_of_inputs(terms, bias):
    loss, gradients = run(terms, chunk=TOKENS, bias=bias)
    for chunk in (1, 7, 128):
        result, others = run(terms, chunk=chunk, bias=bias)
        assert torch.equal(result, loss)
        assert torch.equal(others[0], gradients[0])
        for one, other in zip(others[1:], gradients[1:], strict=True):
            assert error(one, other.double()) < 1e-6


def test_counting_hits_does_not_change_the_loss():
    head, hidden, labels = problem()
    hits = int((head(hidden.bfloat16().float()).argmax(dim=-1) == labels).sum())
    best = head(hidden).argmax(dim=-1)
    labels[0, 100:110] = best[0, 100:110]
    with torch.autocast("cpu", torch.bfloat16), torch.no_grad():
        arguments = (hidden, labels, head, VOCABULARY, head.parameters())
        counted = summed_loss(*arguments, Counted(PLAIN), max_logits=5000)
        plain = summed_loss(*arguments, max_logits=5000)
        expected = summed_terms(head(hidden)[0], labels[0], Counted(PLAIN))
    assert counted[0] == plain
    assert counted[1] == expected[1] >= 10 > hits


def test_gradients_are_scaled_without_another_rounding():
    for one, other in zip(run(chunk=64, factor=1024.0)[1], run(chunk=64, factor=1.0)[1], strict=True):
        assert torch.equal(one, other * 1024.0)


def test_ignored_rows_may_have_infinite_logits():
    logits = torch.randn(3, 50).bfloat16()
    logits[1] = torch.inf
    labels = torch.tensor([4, IGNORED_LABEL, 7])
    losses, hits = torch.empty(3), torch.empty(3)
    linear_loss.cross_entropy_(logits, labels, losses, hits, 0.1, 0.01, True)
    assert losses[1] == 0
    assert torch.count_nonzero(logits[1]) == 0
    assert losses.isfinite().all()
    assert logits.isfinite().all()


def test_without_a_gradient_the_logits_stay_as_they_are():
    logits = torch.randn(3, 50).bfloat16()
    before, losses = logits.clone(), torch.empty(3)
    linear_loss.cross_entropy_(logits, torch.tensor([1, 2, 3]), losses, torch.empty(3), 0.0, 0.0, False)
    assert torch.equal(logits, before)
    expected = nn.functional.cross_entropy(before.float(), torch.tensor([1, 2, 3]), reduction="none")
    torch.testing.assert_close(losses, expected)


def test_products_are_added_without_a_rounding_to_bf16(monkeypatch):
    monkeypatch.setattr(linear_loss, "_FP32_VALUES", 500)
    generator = torch.Generator().manual_seed(2)
    left, right = (torch.randn(64, size, generator=generator).bfloat16() for size in (40, 8))
    product = left.double().t() @ right.double()
    total = torch.full((40, 8), torch.nan)
    for times in (1, 2, 3):
        linear_loss.add_product_(total, left, right, times > 1)
        assert error(total, times * product) < 1e-6


class Scaled(nn.Linear):
    def forward(self, x):
        return 2 * super().forward(x)


def test_only_heads_that_are_one_product_are_taken():
    head = nn.Linear(4, 9)
    subclass = type("FSDPLinear", (nn.Linear,), {})(4, 9)
    assert linear_head(head) == LinearHead(head.weight, head.bias) == linear_head(head.forward)
    assert linear_head(subclass) is not None
    assert linear_head(Scaled(4, 9)) is None
    assert linear_head(LogitRule(scale=2.0).after(head)) is None
    head.register_forward_hook(lambda *args: None)
    assert linear_head(head) is None
    # A sharding unit gathers its weight by hooks, and calls the method itself.
    assert linear_head(head.forward) is not None
    for dtype, taken in (("bf16", True), ("int8", False)):
        frozen = FrozenLinear(nn.Linear(4, 9), nn.Parameter(torch.zeros(9, 4), requires_grad=False), dtype)
        assert (linear_head(frozen) is not None) == taken


def test_only_products_in_16_bits_are_taken():
    head = LinearHead(torch.zeros(9, 4))
    wide, narrow = torch.zeros(2, 4), torch.zeros(2, 4, dtype=torch.bfloat16)
    assert compute_dtype(wide, head) is None
    assert compute_dtype(narrow, head) is None
    assert compute_dtype(narrow, LinearHead(head.weight.bfloat16())) == torch.bfloat16
    with torch.autocast("cpu", torch.float16):
        assert compute_dtype(wide, head) == torch.float16


def test_tokens_of_a_chunk():
    most = language_loss.LINEAR_LOGITS * language_loss.MAX_LOGITS
    assert [tokens_of_chunk(size, most) for size in (100, 128_256, 151_936, 262_144)] == [4096, 4096, 3456, 2048]
    assert [tokens_of_chunk(1000, most) for most in (5, 5000, 300_000)] == [1, 5, 256]


@pytest.mark.parametrize("tied", [True, False])
def test_models_and_sharding_units_use_it(tied, monkeypatch):
    calls = []
    original = linear_loss.linear_loss
    monkeypatch.setattr(linear_loss, "linear_loss", lambda *args, **named: calls.append(1) or original(*args, **named))
    monkeypatch.setattr(language_loss.summed_loss, "__kwdefaults__", {"max_logits": 5 * 257})
    torch.manual_seed(0)
    model = Gpt(GptModel(layers=1, width=16, heads=2, context=8, vocab=257, tied=tied))
    tokens = torch.arange(24).view(3, 8) * 11 % 257
    with torch.autocast("cpu", torch.bfloat16):
        model(tokens, tokens.roll(-1, dims=1)).backward()
        assert len(calls) == 1
        if not tied:
            model.head.summed_loss = partial(summed_loss_of, model.head)
            model(tokens, tokens.roll(-1, dims=1)).backward()
            assert len(calls) == 2
    model(tokens, tokens.roll(-1, dims=1)).backward()
    assert len(calls) == 1 + (not tied), "fp32 computes as before"


def test_nothing_is_computed_that_is_not_needed(monkeypatch):
    added = []
    monkeypatch.setattr(linear_loss, "add_product_", lambda *args: added.append(args[-1]))
    with counting() as bill, torch.autocast("cpu", torch.bfloat16):
        head = nn.Linear(WIDTH, VOCABULARY, bias=False)
        hidden = torch.zeros(1, TOKENS, WIDTH, requires_grad=True)
        arguments = (hidden, torch.zeros(1, TOKENS, dtype=torch.int64), head, VOCABULARY, head.parameters())
        with bill.phase("trained", weights=frozenset({(VOCABULARY, WIDTH)})):
            summed_loss(*arguments, max_logits=16_000).backward()
        assert bill.phases["casts"].launches == 1
        assert added == [False, True, True]
        with torch.no_grad(), bill.phase("evaluated"):
            summed_loss(*arguments, max_logits=16_000)
        head.requires_grad_(False)
        with bill.phase("frozen"):
            summed_loss(*arguments, max_logits=16_000).backward()
    assert len(added) == 3
    # A product and the kernel of the loss for each chunk, the conversions of both operands, and the sum.
    assert bill.phases["evaluated"].launches == 3 * 2 + 2 + 1


def test_half_precision_has_finite_gradients():
    head, hidden, labels = problem()
    with torch.autocast("cpu", torch.float16):
        loss = summed_loss(hidden, labels, head, VOCABULARY, head.parameters(), max_logits=5000)
    (loss * 512.0).backward()
    assert head.weight.grad.isfinite().all()
    assert head.weight.grad.dtype == torch.float32


def test_kernel_is_compared_on_rows_with_and_without_a_target():
    labels = torch.tensor([IGNORED_LABEL] * 20 + [3] * 20)
    logits, values = torch.arange(40.0)[:, None].expand(40, 5), torch.zeros(40)
    rows, targets, *_ = linear_loss._compared_rows(logits, labels, values, values, 0.0, 0.0, True)
    assert rows[:, 0].tolist() == [*range(20, 28), *range(8)]
    assert (targets != IGNORED_LABEL).tolist() == [True] * 8 + [False] * 8
    none = torch.full((40,), IGNORED_LABEL)
    assert linear_loss._compared_rows(logits, none, values, values)[0].numel() == 0
