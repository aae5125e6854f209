"""The kernel of attention, and the choice between kernel and mask for packed rows."""

import pytest
import torch

from trainyard.contract.spec.decoders import GptModel
from trainyard.contract.spec.training_spec import parse_spec
from worker.data.examples import Examples
from worker.engine import attention
from worker.engine.attention import choose_attention, chosen_kernel
from worker.reporting.reporter import NullReporter
from worker.tasks.base import Task
from worker.tasks.gpt import Gpt
from worker.tasks.packing import AttentionShape

GPU = torch.device("cuda")


class Recorder(NullReporter):
    def __init__(self):
        self.events = []

    def event(self, type_, message, *, level="info", data=None):
        self.events.append((type_, message, data.get("path", level)))


def run_of(precision="bf16", packed=True, **sizes):
    model = Gpt(GptModel(**{"width": 64, "heads": 2, "layers": 1, "context": 8, "vocab": 8, **sizes}))
    task = Task()
    task.examples = Examples((), 1, 0, packed=packed)
    return parse_spec({"task": "custom", "target": "module:build", "steps": 1, "precision": precision}), task, model


def choose(device, precision="bf16", packed=True, **sizes):
    spec, task, model = run_of(precision, packed, **sizes)
    recorder = Recorder()
    choose_attention(spec, task, model, device, recorder)
    return model.takes_boundaries, recorder.events


def report(device, model=None):
    spec, task, gpt = run_of(packed=False)
    recorder = Recorder()
    choose_attention(spec, task, model or gpt, device, recorder)
    return recorder.events


@pytest.fixture
def chip(monkeypatch):
    def use(*capability):
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)

    use(9, 0)
    return use


def test_kernel_is_used_where_it_runs(chip):
    assert choose(GPU) == (True, [("packed_attention", "attention in packed rows uses a kernel", "kernel")])
    assert choose(GPU, "fp16")[0]


@pytest.mark.parametrize(
    ("capability", "options", "reason"),
    [
        ((9, 0), {"precision": "fp32"}, "the kernel computes in bf16 and fp16, and `precision` is fp32"),
        ((7, 5), {"precision": "fp16"}, "the kernel needs a GPU of compute capability 8.0"),
        ((9, 0), {"dropout": 0.1}, "it has dropout"),
        ((9, 0), {"width": 24}, "its heads have a width of 12, and the kernel needs a multiple of 8 up to 256"),
        ((8, 6), {"width": 512}, "its heads have a width of 256, and the kernel needs a multiple of 8 up to 192"),
    ],
)
def test_mask_is_used_where_the_kernel_does_not_run(chip, capability, options, reason):
    chip(*capability)
    used, events = choose(GPU, **options)
    assert not used
    assert events == [("packed_attention", f"attention in packed rows uses a mask: {reason}", "mask")]


def test_cpu_keeps_the_mask_and_reports_nothing():
    assert choose(torch.device("cpu")) == (False, [])


def test_rows_of_one_example_need_neither(chip, monkeypatch):
    monkeypatch.setattr(attention, "chosen_kernel", lambda *_: "flash")
    assert choose(GPU, packed=False) == (False, [("attention", "attention uses torch's kernel flash", "info")])


@pytest.mark.parametrize(
    ("kernel", "message", "level"),
    [
        ("cudnn", "attention uses torch's kernel cudnn", "info"),
        ("unknown", "the kernel of attention is unknown", "info"),
        ("none", "attention uses no kernel of torch: it stores the scores of all pairs of tokens", "warning"),
    ],
)
def test_kernel_is_an_event_and_a_missing_one_a_warning(monkeypatch, kernel, message, level):
    requests = []
    monkeypatch.setattr(attention, "chosen_kernel", lambda *request: requests.append(request) or kernel)
    assert report(GPU) == [("attention", message, level)]
    assert requests == [(AttentionShape(2, 2, 32, 8), torch.bfloat16, GPU)]


def test_no_kernel_is_reported_for_other_models_and_the_cpu():
    assert report(GPU, model=torch.nn.Linear(2, 2)) == report(torch.device("cpu")) == []


def test_kernel_is_the_choice_of_torch():
    cpu = torch.device("cpu")
    # On a CPU, torch has a kernel for bf16 and none with dropout.
    assert chosen_kernel(AttentionShape(4, 2, 16, 32), torch.bfloat16, cpu) == "flash"
    assert chosen_kernel(AttentionShape(4, 4, 16, 32, dropout=0.1), torch.bfloat16, cpu) == "none"


def test_a_kernel_that_torch_does_not_name_is_unknown(monkeypatch):
    monkeypatch.delattr(torch, "_fused_sdp_choice")
    assert chosen_kernel(AttentionShape(4, 2, 16, 32), torch.bfloat16, torch.device("cpu")) == "unknown"
