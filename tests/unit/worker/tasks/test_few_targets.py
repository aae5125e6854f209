"""Positions without a target leave before the head: the same loss, gradients and hits."""

import pytest
import torch
from torch import nn

from bench._bill import counting
from trainyard.contract.spec.decoders import GptModel
from trainyard.contract.spec.optimization import Loss
from worker.data.examples import IGNORED_LABEL
from worker.tasks.causal_lm import CausalLm
from worker.tasks.cross_entropy import PLAIN, Counted, FewTargets, cross_entropy_of
from worker.tasks.few_targets import MULTIPLE, at_targets
from worker.tasks.gpt import Gpt
from worker.tasks.language_loss import summed_loss

BATCH, LENGTH, WIDTH, VOCABULARY = 4, 250, 32, 500
TERMS = [PLAIN, Loss(label_smoothing=0.1), Loss(z_loss=0.01)]


def problem():
    generator = torch.Generator().manual_seed(1)
    head = nn.Linear(WIDTH, VOCABULARY)
    for parameter in head.parameters():
        parameter.data = torch.randn(parameter.shape, generator=generator).mul_(0.3)
    hidden = torch.randn(BATCH, LENGTH, WIDTH, generator=generator)
    labels = torch.randint(VOCABULARY, (BATCH, LENGTH), generator=generator)
    labels[torch.rand(labels.shape, generator=generator) > 0.3] = IGNORED_LABEL
    return head, hidden.requires_grad_(), labels, int((labels != IGNORED_LABEL).sum())


def run(terms=PLAIN, *, few, dtype=torch.bfloat16, max_logits=20 * VOCABULARY, plain=True, counted=False):
    head, hidden, labels, count = problem()
    computed = []
    if not plain:
        head.register_forward_hook(lambda module, args, output: computed.append(output.numel() // VOCABULARY))
    inner = Counted(terms) if counted else terms
    with torch.autocast("cpu", dtype, enabled=dtype != torch.float32):
        values = summed_loss(
            hidden, labels, head, VOCABULARY, head.parameters(), FewTargets(inner, count) if few else inner,
            max_logits=max_logits,
        )  # fmt: skip
    ((values[0] if counted else values) / 7).backward()
    return values.detach(), [hidden.grad, *(parameter.grad for parameter in head.parameters())], computed


def error(value, reference):
    return float(torch.linalg.norm(value.double() - reference.double()) / torch.linalg.norm(reference.double()))


@pytest.mark.parametrize("plain", [True, False])
@pytest.mark.parametrize("max_logits", [10**9, 20 * VOCABULARY])
@pytest.mark.parametrize("terms", TERMS)
def test_loss_and_gradients_are_the_same(terms, max_logits, plain):
    expected, gradients, _ = run(terms, few=False, max_logits=max_logits, plain=plain)
    result, others, _ = run(terms, few=True, max_logits=max_logits, plain=plain)
    assert result.item() == pytest.approx(expected.item(), rel=1e-6)
    # The gradient of a row's hidden states needs no other row.
    assert torch.equal(others[0], gradients[0])
    # Sums in bf16 over more or fewer chunks.
    limit = 1e-6 if plain and max_logits < 10**9 else 5e-3
    for one, other in zip(others[1:], gradients[1:], strict=True):
        assert error(one, other) < limit


@pytest.mark.parametrize("max_logits", [10**9, 20 * VOCABULARY])
def test_hits_are_the_same(max_logits):
    expected, _, _ = run(few=False, counted=True, max_logits=max_logits)
    result, _, _ = run(few=True, counted=True, max_logits=max_logits)
    assert result[1] == expected[1]
    assert result[0].item() == pytest.approx(expected[0].item(), rel=1e-6)


def test_weight_gradient_has_the_error_of_all_positions():
    head, hidden, labels, _ = problem()
    wide, weight = (x.detach().bfloat16().double().requires_grad_() for x in (hidden, head.weight))
    logits = wide.flatten(0, 1) @ weight.t() + head.bias.detach().bfloat16().double()
    nn.functional.cross_entropy(logits, labels.flatten(), reduction="sum", ignore_index=IGNORED_LABEL).div(7).backward()
    errors = [error(run(few=few)[1][1], weight.grad) for few in (True, False)]
    assert errors[0] == pytest.approx(errors[1], rel=1e-3)
    assert errors[0] < 5e-3


@pytest.mark.parametrize("size", [1, 2])
def test_micro_batches_add_up_to_the_whole_batch(size):
    expected, gradients, _ = run(few=True)
    head, hidden, labels, _ = problem()
    total = torch.zeros(())
    for rows in torch.arange(BATCH).split(size):
        count = int((labels[rows] != IGNORED_LABEL).sum())
        arguments = (hidden[rows], labels[rows], head, VOCABULARY, head.parameters(), FewTargets(PLAIN, count))
        with torch.autocast("cpu", torch.bfloat16):
            loss = summed_loss(*arguments, max_logits=20 * VOCABULARY)
        (loss / 7).backward()
        total += loss.detach()
    assert total.item() == pytest.approx(expected.item(), rel=1e-6)
    for one, other in zip([hidden.grad, head.weight.grad, head.bias.grad], gradients, strict=True):
        assert error(one, other) < 1e-6


def test_losses_in_fp32_keep_every_bit():
    expected, gradients, _ = run(few=False, dtype=torch.float32)
    result, others, _ = run(few=True, dtype=torch.float32)
    assert torch.equal(result, expected)
    assert all(map(torch.equal, others, gradients))


def test_head_computes_the_targets_and_fills_up_a_multiple():
    _, _, labels, count = problem()
    computed = run(few=True, plain=False)[2]
    assert sum(computed) == -(-count // MULTIPLE) * MULTIPLE < labels.numel() / 2
    assert sum(run(few=False, plain=False)[2]) == labels.numel()


def test_all_targets_are_there_in_their_order():
    _, hidden, labels, count = problem()
    rows, targets = at_targets(hidden, labels, count)
    present = labels != IGNORED_LABEL
    assert torch.equal(targets[0, :count], labels[present])
    assert torch.equal(rows[0, :count], hidden[present])
    assert (targets[0, count:] == IGNORED_LABEL).all()
    assert at_targets(hidden, labels, labels.numel() - 50)[0] is hidden
    assert at_targets(hidden, labels, 0)[0].shape == (1, 0, WIDTH)


def test_no_value_is_read_from_the_device():
    with counting() as bill, torch.autocast("cpu", torch.bfloat16), bill.phase("head"):
        head = nn.Linear(WIDTH, VOCABULARY)
        hidden, labels = torch.zeros(1, 1000, WIDTH, requires_grad=True), torch.zeros(1, 1000, dtype=torch.int64)
        few = FewTargets(PLAIN, 300)
        summed_loss(hidden, labels, head, VOCABULARY, head.parameters(), few, max_logits=5000).backward()
    assert bill.phases["head"].synchronisations == 0
    assert bill.phases["head"].flops == 3 * 2 * 384 * WIDTH * VOCABULARY


def test_whole_logits_count_all_positions():
    head, hidden, labels, count = problem()
    for terms in (PLAIN, Counted(PLAIN)):
        values = cross_entropy_of(head(hidden), labels, FewTargets(terms, count))
        assert torch.equal(values, cross_entropy_of(head(hidden), labels, terms))


def test_task_passes_the_number_of_targets_to_the_model():
    torch.manual_seed(0)
    model = Gpt(GptModel(layers=1, width=16, heads=2, context=LENGTH, vocab=VOCABULARY))
    task = CausalLm(lambda: model, None, None, LENGTH)
    _, _, labels, count = problem()
    tokens = labels.clamp(min=0)
    observed = []
    forward = model.forward
    model.forward = lambda *args: observed.append(args[3]) or forward(*args)
    for batch in ((tokens, labels), (tokens, labels, torch.empty(count, 0))):
        with torch.autocast("cpu", torch.bfloat16):
            task.loss_sum(model, batch)
            task.measured_loss(model, batch)
    few = [FewTargets(PLAIN, count), FewTargets(Counted(PLAIN), count)]
    assert observed == [PLAIN, Counted(PLAIN), *few]
