"""The model card of an export, with the metadata header that model hubs read. A pure function."""

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from trainyard.contract.spec.image_data import ImageFiles
from trainyard.contract.spec.sections import BuiltinData, HfModel
from trainyard.contract.spec.text_data import TextData
from trainyard.contract.spec.text_sources import FileSource, TextSource, UploadedSource, listed_paths
from trainyard.contract.spec.training_spec import TrainingSpec, dump_spec
from trainyard.contract.wire.exported import ExportNote

_NOT_OF_THE_MODEL = ("environment", "resources", "metadata", "restart", "health", "log", "profile", "code")
"""Sections of a spec that state where and how a job ran; they may contain names that should not be published."""
_MAX_NAMES = 10
"""Files of the data that a card names."""
_DIGESTS = {
    "data": "the examples, as the model reads them",
    "data.shuffle": "the order of the examples",
    "reference": "the reference model",
}
"""The subjects of the digests of a run's sources; no digest is of an uploaded file. The base model is named above."""
LICENSE_FIELDS = ("license", "license_name", "license_link")
"""Fields of the header, which labels of the spec's `metadata` with these names fill."""


@dataclass(frozen=True)
class BaseModelCard:
    """Facts about the base model from its folder."""

    license: str | None = None
    hub_name: str | None = None
    """`owner/name` on a model hub."""


def model_card(
    spec: TrainingSpec,
    note: ExportNote,
    metrics: Mapping[str, float],
    sources: Mapping[str, str],
    base: BaseModelCard | None = None,
) -> str:
    """Return the text of README.md.

    Args:
        metrics: The metrics of the exported step; values that are not finite are left out.
        sources: Digests of the run's inputs, by the field of the spec.
        base: The base model of adapters or of a fine-tuned model.
    """
    values = {key: value for key, value in metrics.items() if math.isfinite(value)}
    header = _header(spec, note, values, base or BaseModelCard())
    parts = [
        "---\n" + "\n".join(f"{name}: {json.dumps(value)}" for name, value in header.items()) + "\n---",
        f"# {_plain(spec.name)}",
        _summary(spec, note),
        "## Use\n\n" + _use(spec, note),
        "## Training data\n\n" + _data(spec, sources),
    ]
    if values:
        rows = "\n".join(f"| `{_cell(key)}` | {value:.6g} |" for key, value in sorted(values.items()))
        parts.append(f"## Metrics at step {note.step}\n\n| metric | value |\n|---|---|\n{rows}")
    settings = {name: value for name, value in dump_spec(spec).items() if name not in _NOT_OF_THE_MODEL}
    parts.append("## Spec of the training\n\n```json\n" + json.dumps(settings, indent=1) + "\n```")
    return "\n\n".join(parts) + "\n"


def license_of(card: str) -> str | None:
    """Return the licence that the header of a model card names."""
    header = re.match(r"---\r?\n(.*?)\r?\n---", card, re.DOTALL)
    match = re.search(r"^license: *[\"']?([A-Za-z0-9._+-]{1,60})[\"']? *$", header[1], re.MULTILINE) if header else None
    return match[1] if match else None


def _header(spec: TrainingSpec, note: ExportNote, metrics: Mapping[str, float], base: BaseModelCard) -> dict[str, Any]:
    labels = {name: spec.metadata[name] for name in LICENSE_FIELDS if name in spec.metadata}
    header: dict[str, Any] = {"license": base.license or "unknown", **labels}
    header["library_name"] = _library(spec, note)
    tag = spec.task_kind.pipeline_tag
    if tag is not None:
        header["pipeline_tag"] = tag
    if base.hub_name is not None:
        header["base_model"] = base.hub_name
        if note.kind == "adapter":
            header["base_model_relation"] = "adapter"
    header["tags"] = ["trainyard", *(["lora"] if spec.lora_rank is not None else [])]
    evaluated = {key: value for key, value in metrics.items() if key.startswith("eval/")}
    if evaluated and tag is not None:
        results = [
            {"type": key.removeprefix("eval/"), "name": key, "value": evaluated[key]} for key in sorted(evaluated)
        ]
        dataset = {"name": _data_name(spec), "type": _data_name(spec)}
        result = {"task": {"type": tag}, "dataset": dataset, "metrics": results}
        header["model-index"] = [{"name": spec.name, "results": [result]}]
    return header


def _library(spec: TrainingSpec, note: ExportNote) -> str:
    if note.kind == "adapter":
        return "peft"
    if spec.task_kind.makes_vectors:
        return "sentence-transformers"
    return "transformers" if spec.task_kind.reads_texts or isinstance(spec.data, ImageFiles) else "trainyard"


def _summary(spec: TrainingSpec, note: ExportNote) -> str:
    contents = {"model": "The whole model", "adapter": "Adapters (LoRA)", "trained": "The trained tensors"}[note.kind]
    origin = f" of job `{note.job_id}`" if note.job_id else ""
    lines = [f"{contents} after step {note.step}{origin}, task `{spec.task}`, trained with Trainyard."]
    if isinstance(spec.model, HfModel):
        digest = f", whose folder has the digest `{note.base_digest}`" if note.base_digest else ""
        lines.append(f"Base model: `{_cell(_last_part(spec.model.path))}`{digest}.")
    elif spec.model is not None:
        lines.append(f"Architecture: the builtin `{spec.model.name}`.")
    lines.append(f"The weights are stored in {note.dtype}.")
    return "\n".join(lines)


def _use(spec: TrainingSpec, note: ExportNote) -> str:
    if spec.task_kind.has_own_code:
        return "The job's own code defines the model; `model.safetensors` holds its tensors."
    second = "tokenizer" if spec.task_kind.reads_texts else "transform"
    base = ', base="FOLDER_OF_THE_BASE"' if note.kind != "model" and isinstance(spec.model, HfModel) else ""
    return f'```python\nimport trainyard\n\nmodel, {second} = trainyard.load("./FOLDER"{base})\n```'


def _data(spec: TrainingSpec, sources: Mapping[str, str]) -> str:
    lines = [f"`{_cell(_data_name(spec))}`" + (f", {spec.data.source}" if spec.data is not None else "")]
    lines += [f"* digest of {text}: `{sources[field]}`" for field, text in _DIGESTS.items() if field in sources]
    return "\n".join(lines)


def _data_name(spec: TrainingSpec) -> str:
    """Return the name of the data set, or of its files without their folders, which are of no use elsewhere."""
    if isinstance(spec.data, BuiltinData):
        return spec.data.name
    if isinstance(spec.data, TextData):
        return _first([name for source in spec.data.training_sources.values() for name in _source_names(source)])
    if isinstance(spec.data, ImageFiles):
        paths = (path for source in spec.data.training_sources.values() for path in listed_paths(source.path))
        return _first([_last_part(path) for path in paths])
    return "the data of the job's own code"


def _first(names: list[str]) -> str:
    more = f" and {len(names) - _MAX_NAMES} more" if len(names) > _MAX_NAMES else ""
    return ", ".join(names[:_MAX_NAMES]) + more


def _source_names(source: TextSource) -> list[str]:
    if isinstance(source, FileSource):
        return [_last_part(path) for path in listed_paths(source.path)]
    return [source.id] if isinstance(source, UploadedSource) else []


def _last_part(path: str) -> str:
    return path.rstrip("/").rpartition("/")[2] or path


def _plain(text: str) -> str:
    """Return a text in which Markdown sees no markup."""
    return re.sub(r"([\\`*_{}\[\]<>#|])", r"\\\1", text)


def _cell(text: str) -> str:
    """Return a text for a code span, which may be in a table."""
    return text.replace("`", "'").replace("|", "/")
