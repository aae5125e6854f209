"""Embedding of texts with a Hugging Face model: texts that belong together get similar vectors."""

from collections.abc import Callable, Mapping

import torch
from torch import nn
from torch.nn import functional

from trainyard.contract.spec.sections import Embedding, HfModel
from trainyard.contract.spec.text_data import TextData
from worker.data.examples import Tensors
from worker.data.sampler import Indices
from worker.data.text_examples import DIRECT, DataAccess
from worker.data.text_pairs import PairGroups, load_pairs
from worker.deferred.recording import CannotDeferError
from worker.tasks.base import Task
from worker.tasks.causal_lm import row_length
from worker.tasks.sentence_modules import check_sentence_modules


class TextEmbedding(Task):
    """The cross entropy of finding an anchor's positive among all texts of its group that are not anchors (InfoNCE,
    arXiv:1807.03748, with the negatives of arXiv:1705.00652), in nats, summed over pairs.

    The logits are cosine similarities divided by a temperature. No text is a negative of an anchor that equals it, or
    that has it as the positive in another pair of the group.
    """

    def __init__(self, build: Callable[[], nn.Module], pairs: PairGroups, temperature: float) -> None:
        """`build`: returns a model that makes vectors of length 1, (n, width), of tokens and a mask, (n, length)."""
        self._build = build
        self._temperature = temperature
        self._pairs = pairs
        self.examples = pairs
        self.tokens_per_example = round(float(pairs.texts.lengths[pairs.pairs].sum(axis=1).mean() * pairs.size))

    def build_model(self) -> nn.Module:
        return self._build()

    def deferred_model(self) -> None:
        """Raise CannotDeferError: the model is loaded by transformers, without the parts that no loss reaches."""
        raise CannotDeferError("the model is loaded whole")

    def weight(self, indices: Indices) -> float:
        return float(self._pairs.pairs_in(indices))

    def loss_sum(self, model: nn.Module, batch: Tensors) -> torch.Tensor:
        return _loss(self._logits(model, batch))

    def measured_loss(self, model: nn.Module, batch: Tensors) -> tuple[torch.Tensor, Mapping[str, torch.Tensor]]:
        """Return the summed loss, and the number of anchors whose positive is the most similar."""
        logits = self._logits(model, batch)
        return _loss(logits), {"recall_at_1": _hits(logits.detach())}

    def metric_weight(self, name: str, indices: Indices) -> float:
        """Return the number of pairs: each counts once in every metric."""
        return self.weight(indices)

    def evaluation_sums(self, model: nn.Module, batch: Tensors) -> Mapping[str, torch.Tensor]:
        logits = self._logits(model, batch)
        return {"eval/loss": _loss(logits), "eval/recall_at_1": _hits(logits)}

    def _logits(self, model: nn.Module, batch: Tensors) -> torch.Tensor:
        """Return the scaled similarities of anchors with positives and negatives, fp32, shape (pairs, candidates); the
        positive of anchor i is candidate i. Those that are no negatives are minus infinity."""
        tokens, mask, texts, groups = batch
        pairs = len(groups)
        vectors: torch.Tensor = model(tokens, mask).float()
        logits = vectors[:pairs] @ vectors[pairs:].T / self._temperature
        return logits.masked_fill(excluded_candidates(texts, groups), float("-inf"))


def excluded_candidates(texts: torch.Tensor, groups: torch.Tensor) -> torch.Tensor:
    """Return which candidates are no negatives of an anchor, nor its positive: bool, shape (pairs, candidates).

    Args:
        texts: The numbers of the texts, (texts of a pair, pairs): anchors, positives, and negatives if there are any.
        groups: The group of each pair, (pairs,).
    """
    anchors, candidates = texts[0], texts[1:].reshape(-1)
    excluded = groups[:, None] != groups.repeat(len(texts) - 1)[None]
    # An anchor may be in several pairs, whose positives all belong to it.
    same_anchor = (anchors[:, None] == anchors[None]) & (groups[:, None] == groups[None])
    belongs = same_anchor.float() @ (texts[1][:, None] == candidates[None]).float() > 0
    excluded |= belongs | (anchors[:, None] == candidates[None])
    own = torch.arange(len(groups), device=groups.device)
    excluded[own, own] = False
    return excluded


def _loss(logits: torch.Tensor) -> torch.Tensor:
    return functional.cross_entropy(logits, torch.arange(len(logits), device=logits.device), reduction="sum")


def _hits(logits: torch.Tensor) -> torch.Tensor:
    return (logits.argmax(dim=-1) == torch.arange(len(logits), device=logits.device)).sum()


def build_embedding(
    model: HfModel, data: TextData, embedding: Embedding, seed: int, access: DataAccess = DIRECT
) -> TextEmbedding:
    """Return the task of a Hugging Face model on pairs of texts."""
    from worker.tasks.hf_embedding import load_embedding
    from worker.tasks.hf_model import HfFolder

    folder = HfFolder(model.path, access.roots)
    check_sentence_modules("model.path", folder.path, embedding.pooling, access.roots)
    length = row_length(data.max_length, folder.context)
    pairs, notices = load_pairs(data, folder.tokenizer, length, embedding.group_size, seed, access)
    task = TextEmbedding(lambda: load_embedding(folder, embedding.pooling), pairs, embedding.temperature)
    task.notices = notices
    return task
