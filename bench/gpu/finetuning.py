"""Phase `finetuning`: a packed Hugging Face model beside transformers' Trainer on the same rows."""

import gc
import importlib.util
import os
import time
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

STEPS, WARM_STEPS = 9, 3
REQUIRED_RATIOS = {"flattened": 1.5, "flattened, Liger": 1.2}
"""The speed relative to Trainer's with all texts of a micro-batch in one row (`DataCollatorWithFlattening`) and SDPA,
and with Liger Kernel where it is installed. Its flash attention needs a package that torch lacks."""
MEAN_TEXT = 12
"""A row holds about so many texts."""
_LAUNCHED = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "TORCHELASTIC_RUN_ID")

Segment = dict[str, list[int]]


def cases(*, dry: bool) -> list[Case]:
    return [Case("1B, packed fine-tuning beside Trainer", _measure, 60)]


def _measure(tools: Tools) -> Outcome:
    shape = SHAPES[0]
    document = shape.document(dry=tools.dry, steps=STEPS)
    length = document["model"]["context"]
    rows = document["steps"] * document["batch"]["size"]
    data = write_texts(tools.folder / "texts.jsonl", tokens=2 * rows * length, mean=length // MEAN_TEXT)
    model = write_model(tools, tools.folder / "model", document["model"])
    document |= {"model": {"source": "hf", "path": str(model)}, "data": {"source": "jsonl", "path": str(data)}}
    document["data"]["max_length"] = length
    trained = tools.engine.train(document)
    ours = median(trained.seconds[WARM_STEPS:])
    values: dict[str, Any] = {"ms": 1000 * ours}
    losses, passed = {"Trainyard": trained.losses[0]}, True
    for way, least in REQUIRED_RATIOS.items():
        if "Liger" in way and not importlib.util.find_spec("liger_kernel"):
            continue
        seconds, losses[way] = _trainer(tools, document, liger="Liger" in way)
        values |= {f"Trainer ms, {way}": 1000 * seconds, f"ratio to {way}": seconds / ours}
        passed &= tools.dry or seconds / ours >= least
    values["first losses"] = losses
    passed &= all(abs(float(loss) / float(losses["Trainyard"]) - 1) < 0.01 for loss in losses.values())
    goals = ", ".join(f"{least} times as fast as Trainer {way}" for way, least in REQUIRED_RATIOS.items())
    return Outcome(values, passed, f"{goals}; first losses agree within 1 %")


def _trainer(tools: Tools, document: dict[str, Any], *, liger: bool) -> tuple[float, str]:
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
            use_liger_kernel=liger,
        )
        path = Path(document["model"]["path"])
        model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32, attn_implementation="sdpa")
        trainer = InOrder(model, options, _flattened(), train_dataset=rows, callbacks=[Timer()])
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


def _flattened() -> Any:
    from transformers import DataCollatorWithFlattening

    flatten = DataCollatorWithFlattening()
    return lambda rows: flatten([text for row in rows for text in row])
