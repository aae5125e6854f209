"""Label smoothing and z-loss: the value and the gradients of their definition, and the memory of a cross entropy."""

import numpy as np
import pytest
import torch
from torch.nn import functional

from tests.support.host_memory import LiveTensorBytes
from trainyard.contract.spec.decoders import GptModel
from trainyard.contract.spec.optimization import Loss
from trainyard.contract.spec.sections import BuiltinData, ConvnetModel
from worker.data.examples import IGNORED_LABEL
from worker.tasks.causal_lm import build_builtin_on_stdlib
from worker.tasks.cross_entropy import PLAIN, summed_cross_entropy
from worker.tasks.image_classification import build_digits

TARGETS, CLASSES = 12, 7
BOTH = Loss(label_smoothing=0.1, z_loss=0.05)


def problem(dtype=torch.float32):
    generator = torch.Generator().manual_seed(3)
    logits = 3 * torch.randn(TARGETS, CLASSES, generator=generator)
    labels = torch.randint(CLASSES, (TARGETS,), generator=generator)
    labels[2:4] = IGNORED_LABEL
    return logits.to(dtype).requires_grad_(), labels


def defined(logits, labels, terms):
    """Return the loss by its definition, from torch's own functions."""
    entropy = functional.cross_entropy(logits, labels, reduction="sum", label_smoothing=terms.label_smoothing)
    return entropy + terms.z_loss * logits[labels != IGNORED_LABEL].logsumexp(dim=-1).square().sum()


@pytest.mark.parametrize("terms", [PLAIN, Loss(label_smoothing=0.3), Loss(z_loss=1e-2), BOTH])
def test_loss_and_gradients_are_those_of_the_definition(terms):
    results = []
    for function in (summed_cross_entropy, defined):
        logits, labels = problem()
        loss = function(logits, labels, terms)
        (2 * loss).backward()
        results.append((loss, logits.grad))
    (loss, gradient), (expected, expected_gradient) = results
    assert loss.dtype == torch.float32
    assert loss.item() == pytest.approx(expected.item(), rel=1e-6)
    assert torch.allclose(gradient, expected_gradient, rtol=1e-5, atol=1e-6)


def test_plain_loss_is_torchs_cross_entropy():
    logits, labels = problem()
    assert torch.equal(summed_cross_entropy(logits, labels), functional.cross_entropy(logits, labels, reduction="sum"))


def test_half_precision_is_computed_in_fp32():
    logits, labels = problem(torch.bfloat16)
    loss = summed_cross_entropy(logits, labels, BOTH)
    loss.backward()
    assert loss.item() == pytest.approx(defined(logits.detach().float(), labels, BOTH).item(), rel=1e-6)
    assert logits.grad.dtype == torch.bfloat16


def test_ignored_labels_alone_cost_nothing():
    logits, labels = problem()
    loss = summed_cross_entropy(logits, torch.full_like(labels, IGNORED_LABEL), BOTH)
    loss.backward()
    assert loss.item() == 0.0
    assert torch.count_nonzero(logits.grad) == 0


def peak_bytes(terms):
    logits = torch.randn(64, 1000, requires_grad=True)
    labels = torch.randint(1000, (64,))
    with LiveTensorBytes() as counted:
        counted.add(logits)
        before = counted.live
        summed_cross_entropy(logits, labels, terms).backward()
        return counted.peak - before


def test_terms_need_no_more_memory_than_a_cross_entropy():
    assert peak_bytes(BOTH) <= 1.02 * peak_bytes(PLAIN)


class TestEvaluation:
    def test_language_model_reports_the_cross_entropy_alone(self):
        data = BuiltinData(name="stdlib")
        task = build_builtin_on_stdlib(GptModel(layers=1, width=16, heads=2, context=8), data, BOTH)
        model = task.build_model()
        batch = task.examples.train_batch(np.arange(3), torch.device("cpu"))
        tokens = batch[0].long()
        logits, labels = model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten()
        assert task.loss_sum(model, batch).item() == pytest.approx(defined(logits, labels, BOTH).item(), rel=1e-6)
        evaluated = task.evaluation_sums(model, batch)["eval/loss"]
        assert evaluated.item() == pytest.approx(defined(logits, labels, PLAIN).item(), rel=1e-6)

    def test_classifier_reports_the_cross_entropy_alone(self):
        task = build_digits(ConvnetModel(channels=2), BuiltinData(name="digits"), BOTH)
        model = task.build_model()
        batch = task.examples.tensors[0][:5], task.examples.tensors[1][:5]
        logits = model(batch[0])
        assert task.loss_sum(model, batch).item() == pytest.approx(defined(logits, batch[1], BOTH).item(), rel=1e-6)
        evaluated = task.evaluation_sums(model, batch)["eval/loss"]
        assert evaluated.item() == pytest.approx(defined(logits, batch[1], PLAIN).item(), rel=1e-6)
