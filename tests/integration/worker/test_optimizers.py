"""Lion, Adafactor and Muon make the updates of one process on any layout, and resume on any."""

from itertools import product

import pytest
import torch
from torch import nn

from tests.integration.worker.harness import run_layout
from tests.integration.worker.parity_matrix import VARIANTS, gpt, mlp, write_texts
from trainyard.contract.spec.training_spec import parse_spec
from worker.core.random_state import seed_generators
from worker.data.sampler import GlobalBatches
from worker.engine.optim import learning_rate
from worker.engine.parameter_groups import hidden_matrices
from worker.tasks.select import select_task

pytestmark = pytest.mark.heavy

OPTIMIZERS = {
    "lion": {"lr": 0.001, "weight_decay": 0.1, "clip_norm": 0.5},
    "adafactor": {"lr": 0.02, "weight_decay": 0.1, "clip_norm": 0.5},
    "muon": {"lr": 0.003, "weight_decay": 0.1, "clip_norm": 0.5},
}
_GROUPS = {"no_decay": ["norms", "biases"], "lr_scale": {"blocks.1.*": 2}}
_SCHEDULE = {"name": "cosine", "warmup_steps": 2}
STEPS = 5
LAYOUTS = [(2, "ddp"), (2, "zero2"), (2, "layer")]
SLOW_LAYOUTS = [(2, "zero1"), (4, "hsdp")] + [(3, name) for name in ("ddp", "zero1", "zero2", "naive", "layer")]
MORE = [(2, "layer"), (3, "ddp"), (3, "layer")]
"""Layouts that also run with adapters, with an infinity in fp16, and in two parts."""
CHAIN = [("layer", 2), ("single", 4), ("zero2", STEPS)]
"""Layout and last step of the parts of a run on two ranks, one, and two."""


def document(name, texts, **changes):
    data = {"source": "jsonl", "packing": False, "path": str(texts / "uneven.jsonl")}
    options = {"name": name, **OPTIMIZERS[name], **_GROUPS}
    batch = {"size": 12, "micro_size": 3}
    return gpt(steps=STEPS, data=data, optimizer=options, schedule=_SCHEDULE, batch=batch) | changes


def adapted(name, texts):
    return document(name, texts, lora_rank=2, optimizer={"name": name, **OPTIMIZERS[name]})


def scaled(name):
    options = {"name": name, "lr": 0.002}
    return mlp(steps=4, precision="fp16", amp={"init_scale": 1024}, optimizer=options, batch={"size": 12})


def cases_on(world, layouts, texts):
    cases = {}
    for name, layout in product(OPTIMIZERS, (layout for layout in layouts if layout[0] == world)):
        spec, variant = document(name, texts), layout[1]
        cases[f"{name}/{variant}"] = {"spec": spec | VARIANTS[variant]}
        if layout in MORE:
            run = f"resumed-{name}-{variant}"
            cases[f"{name}/{variant}/lora"] = {"spec": adapted(name, texts) | VARIANTS[variant]}
            plant = {"rank": 1, "step": 2, "value": "inf"}
            cases[f"{name}/{variant}/inf"] = {"spec": scaled(name) | VARIANTS[variant], "plant": plant}
            cases[f"{name}/{variant}/first"] = {"spec": spec | VARIANTS[variant], "run": run, "until": 3}
            cases[f"{name}/{variant}/rest"] = {"spec": spec | VARIANTS[variant], "run": run}
    return cases


def chained(part, texts):
    variant, until = CHAIN[part]
    layout = {"strategy": "single"} if variant == "single" else VARIANTS[variant]
    return {
        f"{name}/chain": {"spec": document(name, texts) | layout, "run": f"chain-{name}", "until": until}
        for name in OPTIMIZERS
    }


@pytest.fixture(scope="module")
def texts(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data") / "texts"
    write_texts(folder)
    return folder


@pytest.fixture(scope="module")
def layouts(tmp_path_factory, texts):
    folder = tmp_path_factory.mktemp("optimizers")
    alone = {name: {"spec": document(name, texts)} for name in OPTIMIZERS}
    alone |= {f"{name}/lora": {"spec": adapted(name, texts)} for name in OPTIMIZERS}
    first = run_layout(2, cases_on(2, LAYOUTS, texts) | chained(0, texts), folder / "2")
    single = run_layout(1, alone | chained(1, texts), folder / "1")
    last = run_layout(2, chained(2, texts), folder / "last")
    return {1: single, 2: first, "chain": [first, single, last]}


@pytest.fixture(scope="module")
def slow_layouts(tmp_path_factory, texts):
    folder = tmp_path_factory.mktemp("slow")
    return {world: run_layout(world, cases_on(world, SLOW_LAYOUTS, texts), folder / str(world)) for world in (2, 3, 4)}


@pytest.fixture
def ranks(request, world, variant):
    runs = "slow_layouts" if (world, variant) in SLOW_LAYOUTS else "layouts"
    return request.getfixturevalue(runs)[world]


def losses(result, case):
    return {int(step): float(value) for step, value in result[0][case]["series"]["train/loss"].items()}


def tensors(result, case):
    return {name: torch.tensor(values) for name, values in result[0][case]["parameters"].items()}


def assert_close(result, case, reference, name):
    assert losses(result, case) == pytest.approx(losses(reference, name), rel=1e-5)
    for key, expected in tensors(reference, name).items():
        assert torch.linalg.norm(tensors(result, case)[key] - expected) <= 1e-5 * torch.linalg.norm(expected), key


def marked(layouts):
    return [pytest.param(*layout, marks=[pytest.mark.slow] if layout in SLOW_LAYOUTS else []) for layout in layouts]


@pytest.mark.parametrize(("world", "variant"), marked(LAYOUTS + SLOW_LAYOUTS))
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_updates_equal_those_of_one_process(layouts, ranks, name, variant):
    assert len(losses(ranks, f"{name}/{variant}")) == STEPS
    assert_close(ranks, f"{name}/{variant}", layouts[1], name)


@pytest.mark.parametrize(("world", "variant"), marked(MORE))
@pytest.mark.parametrize("name", OPTIMIZERS)
class TestOptions:
    def test_updates_of_adapters_equal_those_of_one_process(self, layouts, ranks, name, variant):
        assert_close(ranks, f"{name}/{variant}/lora", layouts[1], f"{name}/lora")

    def test_infinity_on_one_rank_skips_the_update_of_all(self, ranks, name, variant):
        for rank in ranks:
            assert [rank[f"{name}/{variant}/inf"]["scales"][str(step)] for step in (1, 2, 4)] == [1024.0, 512.0, 512.0]
        parameters = [torch.cat(list(tensors([rank], f"{name}/{variant}/inf").values())) for rank in ranks]
        assert all(torch.equal(parameters[0], other) for other in parameters)
        assert torch.isfinite(parameters[0]).all()

    def test_resume_on_the_same_layout_gives_identical_losses(self, ranks, name, variant):
        whole, first, rest = (
            ranks[0][f"{name}/{variant}{part}"]["series"]["train/loss"] for part in ("", "/first", "/rest")
        )
        assert first | rest == whole
        assert list(rest) == [str(step) for step in range(4, STEPS + 1)]


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_resume_on_other_layouts_keeps_the_trajectory(layouts, name):
    merged = {}
    for result in layouts["chain"]:
        merged |= losses(result, f"{name}/chain")
    assert merged == pytest.approx(losses(layouts[1], name), rel=1e-5)


def plain_optimizers(name, model, spec):
    """Return the optimizers of torch that do the same."""
    options = spec.optimizer
    kinds = {id(p) for m in model.modules() if isinstance(m, nn.LayerNorm) for p in m.parameters()}
    kinds |= {id(p) for key, p in model.named_parameters() if key.endswith("bias")}
    chosen = hidden_matrices(model) if name == "muon" else frozenset()
    groups = {True: [], False: []}
    for key, parameter in model.named_parameters():
        scale = 2.0 if key.startswith("blocks.1.") else 1.0
        decay = 0.0 if id(parameter) in kinds else options.weight_decay
        group = {"params": [parameter], "lr": options.lr * scale, "weight_decay": decay}
        groups[id(parameter) in chosen].append(group)
    if name == "adafactor":
        return [torch.optim.Adafactor(groups[False])]
    muon = torch.optim.Muon(groups[True], momentum=0.95, adjust_lr_fn="match_rms_adamw")
    return [muon, torch.optim.AdamW(groups[False])]


@pytest.mark.parametrize("name", ["adafactor", "muon"])
def test_run_equals_a_plain_loop_of_torch(layouts, texts, name, monkeypatch):
    """Muon of torch rounds to bf16, which a run in fp32 does not."""
    monkeypatch.setattr(torch.Tensor, "bfloat16", torch.Tensor.clone)
    spec = parse_spec(document(name, texts))
    seed_generators(spec.seed)
    task = select_task(spec)
    model = task.build_model()
    optimizers = plain_optimizers(name, model, spec)
    bases = [[group["lr"] for group in optimizer.param_groups] for optimizer in optimizers]
    order = GlobalBatches(task.examples.train, spec.batch.size, seed=spec.seed, last=spec.batch.last, shuffle=True)
    expected = {}
    for step in range(1, STEPS + 1):
        for optimizer, rates in zip(optimizers, bases, strict=True):
            for group, base in zip(optimizer.param_groups, rates, strict=True):
                group["lr"] = learning_rate(spec.schedule, base, step, STEPS)
        indices = order.at(step - 1)
        batch = task.examples.train_batch(indices, torch.device("cpu"))
        loss = task.loss_sum(model, batch) / task.weight(indices)
        model.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), spec.optimizer.clip_norm)
        for optimizer in optimizers:
            optimizer.step()
        expected[step] = loss.item()
    assert losses(layouts[1], name) == pytest.approx(expected, rel=1e-5)
