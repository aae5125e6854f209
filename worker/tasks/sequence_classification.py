"""Classification of texts with a Hugging Face model and a head of its own for the classes of the data."""

from collections.abc import Callable, Mapping

import torch
from torch import nn

from trainyard.contract.spec.optimization import Loss
from trainyard.contract.spec.sections import HfModel
from trainyard.contract.spec.text_data import TextData
from worker.data.examples import Tensors
from worker.data.labelled_texts import LabelledExamples, load_labelled
from worker.data.text_examples import DIRECT, DataAccess
from worker.deferred.recording import CannotDeferError
from worker.tasks.adapter_classes import check_classes, known_classes
from worker.tasks.base import Task
from worker.tasks.causal_lm import row_length
from worker.tasks.cross_entropy import PLAIN, summed_cross_entropy

_COUNTS = ("hit", "predicted", "present")
"""Counts of each class, from which its F1 follows."""


class SequenceClassification(Task):
    """Cross entropy in nats, summed over texts; accuracy and macro-averaged F1 on held-out texts."""

    def __init__(
        self,
        build: Callable[[], nn.Module],
        examples: LabelledExamples,
        classes: tuple[str, ...],
        loss: Loss = PLAIN,
    ) -> None:
        """`loss`: the terms of the training loss."""
        self._build = build
        self._loss = loss
        self.examples = examples
        self.classes = classes
        self.tokens_per_example = round(float(examples.lengths.mean()))

    def build_model(self) -> nn.Module:
        return self._build()

    def deferred_model(self) -> None:
        """Raise CannotDeferError: transformers draws the weights of a new head while it loads the others."""
        raise CannotDeferError("the head for the classes may be new")

    def loss_sum(self, model: nn.Module, batch: Tensors) -> torch.Tensor:
        tokens, mask, labels = batch
        return summed_cross_entropy(model(tokens, mask), labels, self._loss)

    def measured_loss(self, model: nn.Module, batch: Tensors) -> tuple[torch.Tensor, Mapping[str, torch.Tensor]]:
        """Return the summed loss, and the number of texts whose class is found."""
        tokens, mask, labels = batch
        logits = model(tokens, mask)
        hits = (logits.detach().argmax(dim=-1) == labels).sum()
        return summed_cross_entropy(logits, labels, self._loss), {"accuracy": hits}

    def evaluation_sums(self, model: nn.Module, batch: Tensors) -> Mapping[str, torch.Tensor]:
        tokens, mask, labels = batch
        logits = model(tokens, mask).float()
        predicted = logits.argmax(dim=-1)
        count = len(self.classes)
        counts = {
            "hit": torch.bincount(labels[predicted == labels], minlength=count),
            "predicted": torch.bincount(predicted, minlength=count),
            "present": torch.bincount(labels, minlength=count),
        }
        sums = {f"eval/f1:{kind}:{index}": counts[kind][index] for kind in _COUNTS for index in range(count)}
        return {
            "eval/loss": summed_cross_entropy(logits, labels),
            "eval/accuracy": (predicted == labels).sum(),
            **sums,
        }

    def complete_metrics(self, means: Mapping[str, float]) -> dict[str, float]:
        """Return the metrics with F1 instead of the counts of classes: its mean over the classes that occur, in the
        texts or in the model's predictions, as scikit-learn's `f1_score(average="macro")`."""
        metrics = {name: value for name, value in means.items() if not name.startswith("eval/f1:")}
        for name in [one for one in metrics if one.startswith("eval/accuracy")]:
            end = name.removeprefix("eval/accuracy")
            scores = []
            for index in range(len(self.classes)):
                hit, predicted, present = (means[f"eval/f1:{kind}:{index}{end}"] for kind in _COUNTS)
                if predicted + present:
                    scores.append(2 * hit / (predicted + present))
            metrics[f"eval/f1{end}"] = sum(scores) / len(scores)
        return metrics


def build_classification(
    model: HfModel, data: TextData, access: DataAccess = DIRECT, loss: Loss = PLAIN, adapter: str | None = None
) -> SequenceClassification:
    """Return the task of a Hugging Face model on texts with labels. `adapter`: the folder of a continued adapter."""
    from worker.tasks.hf_classifier import class_names, load_text_classifier
    from worker.tasks.hf_model import HfFolder

    folder = HfFolder(model.path, access.roots)
    length = row_length(data.max_length, folder.context)
    known = known_classes(class_names(folder.config), adapter, access.roots)
    files = load_labelled(data, folder.tokenizer, length, known, access)
    check_classes(adapter, known, files.classes)
    padding = files.examples.texts.padding
    task = SequenceClassification(
        lambda: load_text_classifier(folder, files.classes, padding), files.examples, files.classes, loss
    )
    task.notices = files.notices
    return task
