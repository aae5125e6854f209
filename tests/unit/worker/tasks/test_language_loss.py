"""Cross entropy in chunks: the same loss and gradients, and never all logits at once."""

import weakref

import pytest
import torch
from torch import nn
from torch.nn import functional

from trainyard.contract.spec.decoders import GptModel
from trainyard.contract.spec.optimization import Loss
from worker.data.examples import IGNORED_LABEL
from worker.tasks import language_loss
from worker.tasks.cross_entropy import PLAIN, Counted, summed_cross_entropy
from worker.tasks.gpt import Gpt
from worker.tasks.language_loss import summed_loss, tokens_of_chunk

VOCABULARY, WIDTH = 257, 16


def problem():
    generator = torch.Generator().manual_seed(1)
    hidden = torch.randn(3, 7, WIDTH, generator=generator)
    labels = torch.randint(VOCABULARY, (3, 7), generator=generator)
    labels[0, 2:5] = IGNORED_LABEL
    return hidden, labels


def loss_and_gradients(most, terms=PLAIN, scale=1.0):
    torch.manual_seed(0)
    head = nn.Linear(WIDTH, VOCABULARY)
    observed = []
    head.register_forward_hook(lambda module, args, output: observed.append(output.numel()))
    hidden, labels = problem()
    hidden.requires_grad_()
    loss = summed_loss(hidden, labels, head, VOCABULARY, head.parameters(), terms, max_logits=most)
    (loss * scale).backward()
    return loss, [hidden.grad, head.weight.grad, head.bias.grad], observed


TERMS = [Loss(), Loss(label_smoothing=0.1), Loss(z_loss=0.01), Loss(label_smoothing=0.2, z_loss=0.01)]


@pytest.mark.parametrize("tokens", [1, 4, 20])
@pytest.mark.parametrize("terms", TERMS)
def test_pieces_give_the_same_loss_and_gradients(tokens, terms):
    loss, gradients, _ = loss_and_gradients(10**9, terms)
    result, pieces, _ = loss_and_gradients(tokens * VOCABULARY, terms)
    assert result.item() == pytest.approx(loss.item(), rel=1e-6)
    for one, other in zip(pieces, gradients, strict=True):
        assert torch.linalg.norm(one - other) <= 1e-6 * torch.linalg.norm(other)


@pytest.mark.parametrize("most", [10**9, 4 * VOCABULARY])
@pytest.mark.parametrize("terms", TERMS)
def test_counting_hits_does_not_change_the_loss(most, terms):
    expected, gradients, _ = loss_and_gradients(most, terms, scale=3.0)
    torch.manual_seed(0)
    head = nn.Linear(WIDTH, VOCABULARY)
    hidden, labels = problem()
    hits = head(hidden).argmax(dim=-1)
    labels[1], labels[2, :3] = hits[1], hits[2, :3]
    labels[1, 0] = IGNORED_LABEL
    hidden.requires_grad_()
    plain = summed_loss(hidden, labels, head, VOCABULARY, head.parameters(), terms, max_logits=most)
    counted = summed_loss(hidden, labels, head, VOCABULARY, head.parameters(), Counted(terms), max_logits=most)
    assert counted[0] == plain
    assert counted[1] == (hits == labels).sum() == 9
    with torch.no_grad():
        evaluated = summed_loss(hidden, labels, head, VOCABULARY, head.parameters(), Counted(terms), max_logits=most)
    assert torch.equal(evaluated, counted)
    hidden, labels = problem()
    hidden.requires_grad_()
    head.zero_grad()
    loss, _ = summed_loss(hidden, labels, head, VOCABULARY, head.parameters(), Counted(terms), max_logits=most)
    (loss * 3.0).backward()
    assert loss == expected
    for one, other in zip([hidden.grad, head.weight.grad, head.bias.grad], gradients, strict=True):
        assert torch.equal(one, other)


def test_it_is_torchs_own_sum():
    torch.manual_seed(0)
    head = nn.Linear(WIDTH, VOCABULARY)
    hidden, labels = problem()
    expected = functional.cross_entropy(head(hidden).flatten(0, 1), labels.flatten(), reduction="sum")
    assert summed_loss(hidden, labels, head, VOCABULARY, head.parameters()) == expected


def test_no_more_logits_than_allowed_exist_at_once():
    assert loss_and_gradients(10**9)[2] == [21 * VOCABULARY]
    assert max(loss_and_gradients(4 * VOCABULARY)[2]) == 4 * VOCABULARY


def test_chunks_of_a_trained_head_need_no_more_memory_than_its_gradient():
    width, vocabulary = 2048, 128_256
    tokens = tokens_of_chunk(width, least=523)
    assert tokens == 768
    assert 14 * tokens * vocabulary <= 6 * width * vocabulary
    assert tokens_of_chunk(WIDTH, least=4) == 4


def test_gradients_of_one_chunk_at_a_time_exist(monkeypatch):
    alive = []
    compute = language_loss._chunk_gradients

    def watched(*args, **named):
        alive.append(sum(reference() is not None for reference in references))
        result = compute(*args, **named)
        references.extend(weakref.ref(gradient) for gradient in result[2])
        return result

    references = []
    monkeypatch.setattr(language_loss, "_chunk_gradients", watched)
    loss_and_gradients(4 * VOCABULARY)
    assert alive == [0] * 6


def test_logits_of_a_chunk_are_computed_once():
    assert sum(loss_and_gradients(4 * VOCABULARY)[2]) == 21 * VOCABULARY


def test_loss_scale_reaches_the_gradients():
    plain, scaled = (loss_and_gradients(4 * VOCABULARY, scale=scale)[1] for scale in (1.0, 1024.0))
    for one, other in zip(scaled, plain, strict=True):
        assert torch.equal(one, other * 1024.0)


def test_frozen_head_has_no_gradient():
    hidden, labels = problem()
    head = nn.Linear(WIDTH, VOCABULARY).requires_grad_(False)
    hidden.requires_grad_()
    summed_loss(hidden, labels, head, VOCABULARY, head.parameters(), max_logits=4 * VOCABULARY).backward()
    assert (head.weight.grad, hidden.grad is not None) == (None, True)


def test_evaluation_computes_no_gradients(monkeypatch):
    hidden, labels = problem()
    head = nn.Linear(WIDTH, VOCABULARY)
    monkeypatch.setattr(torch.autograd, "grad", None)
    with torch.no_grad():
        loss = summed_loss(hidden, labels, head, VOCABULARY, head.parameters(), max_logits=4 * VOCABULARY)
    assert loss.item() == pytest.approx(
        summed_cross_entropy(head(hidden).flatten(0, 1), labels.flatten()).item(), rel=1e-6
    )


def test_gradients_of_bf16_weights_are_added_in_fp32():
    torch.manual_seed(0)
    head = nn.Linear(WIDTH, VOCABULARY, bias=False).bfloat16()
    hidden, labels = problem()
    gradients = []
    for most in (10**9, VOCABULARY):
        head.weight.grad = None
        summed_loss(hidden.bfloat16(), labels, head, VOCABULARY, head.parameters(), max_logits=most).backward()
        gradients.append(head.weight.grad.float())
    assert torch.linalg.norm(gradients[1] - gradients[0]) <= 2**-8 * torch.linalg.norm(gradients[0])


def test_a_row_of_ignored_labels_costs_nothing_and_has_gradients():
    hidden, labels = problem()
    head = nn.Linear(WIDTH, VOCABULARY)
    ignored = torch.full_like(labels, IGNORED_LABEL)
    loss = summed_loss(hidden, ignored, head, VOCABULARY, head.parameters(), max_logits=4 * VOCABULARY)
    loss.backward()
    assert loss.item() == 0.0
    assert torch.count_nonzero(head.weight.grad) == 0


@pytest.mark.parametrize("tied", [True, False])
def test_a_transformers_loss_in_pieces(tied, monkeypatch):
    def run():
        torch.manual_seed(0)
        model = Gpt(GptModel(layers=1, width=16, heads=2, context=8, vocab=257, tied=tied))
        tokens = torch.arange(24).view(3, 8) * 11 % 257
        loss = model(tokens, tokens.roll(-1, dims=1))
        loss.backward()
        return loss, {name: parameter.grad for name, parameter in model.named_parameters()}

    whole, gradients = run()
    monkeypatch.setattr(language_loss.summed_loss, "__kwdefaults__", {"max_logits": 5 * 257})
    result, pieces = run()
    assert result.item() == pytest.approx(whole.item(), rel=1e-6)
    for name, gradient in gradients.items():
        assert torch.linalg.norm(pieces[name] - gradient) <= 1e-6 * torch.linalg.norm(gradient), name
