"""Packed fine-tuning of a Hugging Face model in phase `speed`, in turns with transformers' Trainer on the same rows."""

import gc
import os
import time
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any
from unittest.mock import patch

import numpy as np
import torch

from bench.gpu.cases import Case, Outcome, Tools
from bench.gpu.packed import write_model, write_texts
from bench.gpu.shapes import SHAPES
from worker.data.sampler import GlobalBatches
from worker.data.token_rows import RowExamples
from worker.tasks.causal_lm import CausalLm
from worker.tasks.select import select_task

STEPS, WARM_STEPS, DRY_STEPS = 12, 4, 6
REQUIRED_RATIO = 1.5
"""Trainyard's speed relative to the fastest way of Trainer."""
MEAN_TEXT = 12
"""A row holds about so many texts."""
WAYS = ("rows", "flattened", "flattened, flex attention")
"""How Trainer gets a micro-batch: the packed rows with their positions and a mask, or all texts in one row
(`DataCollatorWithFlattening`) with a mask or flex attention. Its flash attention needs a package that torch lacks."""
_LAUNCHED = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "TORCHELASTIC_RUN_ID")

Segment = dict[str, list[int]]


def cases(*, dry: bool) -> list[Case]:
    return [Case("1B, packed fine-tuning beside Trainer", _measure)]


def _measure(tools: Tools) -> Outcome:
    shape = SHAPES[0]
    document = shape.document(dry=tools.dry, steps=DRY_STEPS if tools.dry else STEPS)
    length = document["model"]["context"]
    rows = document["steps"] * document["batch"]["size"]
    data = write_texts(tools.folder / "texts.jsonl", tokens=2 * rows * length, mean=length // MEAN_TEXT)
    model = write_model(tools, tools.folder / "model", document["model"])
    document |= {"model": {"source": "hf", "path": str(model)}, "data": {"source": "jsonl", "path": str(data)}}
    document["data"]["max_length"] = length
    seconds: dict[str, list[float]] = {}
    losses: dict[str, str] = {}
    for _ in range(1 if tools.dry else 2):
        trained = tools.engine.train(document)
        seconds.setdefault("Trainyard", []).append(median(trained.seconds[WARM_STEPS:]))
        losses["Trainyard"] = trained.losses[0]
        for way in WAYS[1:2] if tools.dry else WAYS:
            with suppress(torch.OutOfMemoryError):
                each, losses[way] = _trainer(tools, document, way)
                seconds.setdefault(way, []).append(each)
    best = {way: min(values) for way, values in seconds.items()}
    ours = best.pop("Trainyard")
    fastest = min(best, key=lambda way: best[way])
    values: dict[str, Any] = {"ms": 1000 * ours, **{f"Trainer ms, {way}": 1000 * value for way, value in best.items()}}
    values |= {"ratio": best[fastest] / ours, "fastest": fastest, "first losses": losses}
    equal = all(abs(float(loss) / float(losses["Trainyard"]) - 1) < 0.01 for loss in losses.values())
    passed = equal and (tools.dry or best[fastest] / ours >= REQUIRED_RATIO)
    return Outcome(values, passed, f"at least {REQUIRED_RATIO} times as fast; first losses agree within 1 %")


def _trainer(tools: Tools, document: dict[str, Any], way: str) -> tuple[float, str]:
    """Return the median seconds of a step of Trainer, and its loss in the first one."""
    from transformers import AutoModelForCausalLM, PrinterCallback, Trainer, TrainerCallback, TrainingArguments

    gc.collect()
    rows = _rows(tools, document)
    marks: list[float] = []
    losses: list[str] = []

    class Timer(TrainerCallback):  # type: ignore[misc, unused-ignore]
        def on_step_end(self, *args: Any, **named: Any) -> None:
            if tools.engine.on_gpu:
                torch.cuda.synchronize()
            marks.append(time.perf_counter())

        def on_log(self, *args: Any, logs: dict[str, Any], **named: Any) -> None:
            losses.extend([repr(logs["loss"])] if "loss" in logs else [])

    class InOrder(Trainer):  # type: ignore[misc, unused-ignore]
        def _get_train_sampler(self, *args: Any) -> Any:
            return torch.utils.data.SequentialSampler(rows)

    with patch.dict(os.environ):
        for name in _LAUNCHED:
            os.environ.pop(name, None)
        options = TrainingArguments(
            output_dir=str(tools.folder / "trainer"),
            per_device_train_batch_size=document["batch"]["micro_size"],
            max_steps=document["steps"],
            learning_rate=document["optimizer"]["lr"],
            lr_scheduler_type="constant",
            optim="adamw_torch_fused",
            max_grad_norm=1.0,
            bf16=True,
            use_cpu=not tools.engine.on_gpu,
            logging_steps=1,
            save_strategy="no",
            report_to=[],
            remove_unused_columns=False,
            disable_tqdm=True,
        )
        attention = "flex_attention" if way == WAYS[2] else "sdpa"
        path = Path(document["model"]["path"])
        model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32, attn_implementation=attention)
        trainer = InOrder(model, options, _collate(way), train_dataset=rows, callbacks=[Timer()])
        trainer.remove_callback(PrinterCallback)
        trainer.train()
    del model, trainer
    between = [after - before for before, after in pairwise(marks)]
    return median(between[WARM_STEPS:]), losses[0]


def _rows(tools: Tools, document: dict[str, Any]) -> list[list[Segment]]:
    """Return the rows of all steps in Trainyard's order, each as its texts."""
    spec = tools.engine.resolve(document)
    task = select_task(spec)
    assert isinstance(task, CausalLm)
    assert isinstance(task.examples, RowExamples)
    rows = task.examples.rows
    batches = GlobalBatches(task.examples.train, spec.batch.size, seed=spec.seed)
    result = []
    for index in np.concatenate([batches.at(step) for step in range(document["steps"])]):
        texts = []
        for segment in rows.segments(int(index)):
            learned = np.where(np.arange(len(segment.tokens)) > 0, segment.targets, False)
            labels = np.where(learned, segment.tokens, -100)
            texts.append({"input_ids": segment.tokens.tolist(), "labels": labels.tolist()})
        result.append(texts)
    return result


def _collate(way: str) -> Any:
    from transformers import DataCollatorWithFlattening

    flatten = DataCollatorWithFlattening()

    def flattened(rows: list[list[Segment]]) -> Any:
        return flatten([text for row in rows for text in row])

    def stacked(rows: list[list[Segment]]) -> Any:
        single = [flatten(row) for row in rows]
        longest = max(row["input_ids"].shape[1] for row in single)
        padding = {"input_ids": 0, "labels": -100, "position_ids": 0}
        return {
            key: torch.cat(
                [torch.nn.functional.pad(row[key], (0, longest - row[key].shape[1]), value=value) for row in single]
            )
            for key, value in padding.items()
        }

    return stacked if way == WAYS[0] else flattened
