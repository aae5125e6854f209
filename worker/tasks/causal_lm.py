"""Next-token prediction: a built-in transformer or a Hugging Face model, on built-in text or files of text."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from trainyard.contract.spec.decoders import BuiltinDecoder
from trainyard.contract.spec.optimization import Loss
from trainyard.contract.spec.sections import BuiltinData, HfModel
from trainyard.contract.spec.text_data import TextData
from worker.core.errors import RefusedError
from worker.data.builtin import load_stdlib, windows
from worker.data.examples import Examples, Tensors
from worker.data.sampler import Indices
from worker.data.text_examples import DIRECT, DataAccess, load_examples
from worker.data.token_rows import RowExamples
from worker.data.tokenizers import ByteTokenizer, HfTokenizer, Tokenizer
from worker.deferred.model import DeferredModel
from worker.tasks.base import Task
from worker.tasks.builtin_models import build_builtin
from worker.tasks.cross_entropy import PLAIN, Counted, FewTargets, Terms

MAX_ROW_TOKENS = 2048
"""Tokens of a row unless the spec or the model's context sets a limit."""
ACCURACY = "mean_token_accuracy"
"""The end of the names of metrics: the fraction of target tokens to which the model gives the highest probability."""


class CausalLm(Task):
    """The loss in nats, summed over the tokens that are targets."""

    def __init__(
        self,
        build: Callable[[], nn.Module],
        examples: Examples,
        weights: NDArray[np.integer[Any]],
        tokens_per_example: int,
        terms: Loss = PLAIN,
    ) -> None:
        """`terms`: the parts of the training loss beside the cross entropy."""
        self._build = build
        self._terms = terms
        self.defer: Callable[[], DeferredModel] | None = None
        """Builds the model without its stored parameters."""
        self._weights = weights
        self.examples = examples
        self.tokens_per_example = tokens_per_example

    def build_model(self) -> nn.Module:
        return self._build()

    def deferred_model(self) -> DeferredModel | None:
        return self.defer() if self.defer else None

    def weight(self, indices: Indices) -> float:
        return float(self._weights[indices].sum())

    def loss_sum(self, model: nn.Module, batch: Tensors) -> torch.Tensor:
        # If the model is copied to several GPUs, each of them returns its own part.
        return _loss_of(model, batch, self._terms).sum()

    def measured_loss(self, model: nn.Module, batch: Tensors) -> tuple[torch.Tensor, Mapping[str, torch.Tensor]]:
        """Return the summed loss, and the number of target tokens with the highest probability."""
        loss, hits = _loss_of(model, batch, Counted(self._terms)).view(-1, 2).sum(dim=0)
        return loss, {ACCURACY: hits.detach()}

    def metric_weight(self, name: str, indices: Indices) -> float:
        """Return the number of target tokens."""
        return self.weight(indices)

    def evaluation_sums(self, model: nn.Module, batch: Tensors) -> Mapping[str, torch.Tensor]:
        loss, hits = _loss_of(model, batch, Counted(PLAIN)).unbind()
        return {"eval/loss": loss, f"eval/{ACCURACY}": hits}


def _loss_of(model: nn.Module, batch: Tensors, terms: Loss | Counted) -> torch.Tensor:
    if len(batch) == 1:
        tokens = batch[0].long()
        batch = tokens[:, :-1], tokens[:, 1:]
    if len(batch) % 2:
        *others, targets = batch
        return _model_loss(model, tuple(others), FewTargets(terms, len(targets)))
    return _model_loss(model, batch, terms)


def _model_loss(model: nn.Module, batch: Tensors, terms: Terms) -> torch.Tensor:
    if len(batch) == 2:
        loss: torch.Tensor = model(*batch, None, terms)
    else:
        inputs, labels, positions, ends = batch
        loss = model(inputs, labels, positions, terms, ends)
    return loss


def build_builtin_on_stdlib(model: BuiltinDecoder, data: BuiltinData, loss: Loss = PLAIN) -> CausalLm:
    """Return the task on windows of bytes, a byte longer than the model's context: uint8, (rows, context + 1)."""
    rows = windows(load_stdlib(), model.context + 1)
    held_out = round(len(rows) * data.eval_fraction)
    examples = Examples((rows,), train=len(rows) - held_out, held_out=held_out)
    weights = np.full(len(rows), model.context, dtype=np.int64)
    return CausalLm(lambda: build_builtin(model), examples, weights, model.context, loss)


def build_builtin_on_text(
    model: BuiltinDecoder, data: TextData, access: DataAccess = DIRECT, loss: Loss = PLAIN, *, row_multiple: int = 1
) -> CausalLm:
    """Return the task on texts as bytes; `row_multiple`: see `RowExamples.multiple`."""
    task = _on_text(lambda: build_builtin(model), data, ByteTokenizer(), model.context, access, loss)
    return _padded(task, row_multiple, model.context)


def build_hf_on_text(
    model: HfModel, data: TextData, access: DataAccess = DIRECT, loss: Loss = PLAIN, *, row_multiple: int = 1
) -> CausalLm:
    """Return the same with a Hugging Face model."""
    from worker.tasks.hf_model import HfFolder

    folder = HfFolder(model.path, access.roots)
    build, tokenizer = partial(folder.load, packed=data.packing), HfTokenizer(folder.tokenizer)
    task = _on_text(build, data, tokenizer, folder.context, access, loss)
    task.defer = lambda: folder.defer(packed=data.packing)
    return _padded(task, row_multiple, folder.context)


def _padded(task: CausalLm, multiple: int, context: int | None) -> CausalLm:
    assert isinstance(task.examples, RowExamples)
    task.examples = replace(task.examples, multiple=multiple, context=context, counts_targets=True)
    return task


def _on_text(
    build: Callable[[], nn.Module],
    data: TextData,
    tokenizer: Tokenizer,
    context: int | None,
    access: DataAccess,
    loss: Loss,
) -> CausalLm:
    examples, notices = load_examples(data, tokenizer, row_length(data.max_length, context), access)
    rows = examples.rows
    task = CausalLm(build, examples, rows.weights, round(float(rows.lengths.mean())), loss)
    task.notices = notices
    return task


def row_length(max_length: int | None, context: int | None) -> int:
    """Return the maximum number of tokens of a row.

    Raises:
        RefusedError: The spec's length exceeds the model's context, or is 1.
    """
    if max_length is None:
        return min(context or MAX_ROW_TOKENS, MAX_ROW_TOKENS)
    if context is not None and max_length > context:
        raise RefusedError(
            f"data.max_length is {max_length}, longer than the model's context of {context} tokens",
            f"Set data.max_length to {context} or less.",
        )
    if max_length < 2:
        raise RefusedError("data.max_length is 1, but a row needs two tokens", "Set data.max_length to 2 or more.")
    return max_length
