"""Rules of task `sequence_classification`. Pure functions."""

from collections.abc import Iterator

from trainyard.contract.spec.sections import HfModel
from trainyard.contract.spec.text_data import TextData, TextMixture
from trainyard.contract.spec.training_spec import TrainingSpec

FORMAT = "labelled_text"
TASK = "sequence_classification"


def unsupported_classification(spec: TrainingSpec) -> Iterator[tuple[str, str]]:
    """Yield the problems of a classification of texts, or of a format that only it can read."""
    if spec.task != TASK:
        if isinstance(spec.data, TextData):
            for section, source in spec.data.described_sources.items():
                if source.format == FORMAT:
                    yield f"{section}.format", f"`{FORMAT}` is for task `{TASK}`; use another format"
        return
    if not isinstance(spec.model, HfModel):
        yield "model.source", f"`builtin` does not fit task `{TASK}`; use `hf`"
    for field in ("lora_rank", "trainable"):
        if getattr(spec, field) is not None:
            yield field, f"is not for task `{TASK}`, which trains the whole model; remove it"
    data = spec.data
    if not isinstance(data, TextData):
        yield "data.source", f"`builtin` has no texts with labels, which task `{TASK}` needs; use source `jsonl`"
        return
    if isinstance(data, TextMixture):
        yield "data.source", f"`mixture` is not for task `{TASK}`; list the files in `data.path`"
    if data.eval_fraction:
        yield "data.eval_fraction", f"is not for task `{TASK}`; name files with `data.eval_path` or `data.eval_sets`"
    for section, source in data.described_sources.items():
        if source.format not in ("auto", FORMAT):
            yield f"{section}.format", f"is `{source.format}`, and task `{TASK}` needs `{FORMAT}`"
