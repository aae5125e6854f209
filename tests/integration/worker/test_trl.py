"""Objectives beside TRL's trainers, on the same small model and data: losses, gradients, and losses step by step."""

from types import SimpleNamespace

import pytest
import torch

from tests.integration.worker.harness import run_layout
from tests.support import hf
from tests.support.ranks import single_rank
from trainyard.contract.formats.preferences import parse_preference
from trainyard.contract.spec.training_spec import parse_spec
from trainyard.progress_file import ProgressCounter
from worker.engine.precision import Precision
from worker.engine.reference import ReferenceFile, fill_reference
from worker.engine.strategies.base import ParallelModel
from worker.tasks.select import select_task

pytestmark = pytest.mark.timeout(600)

PAIRS = 8
CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("trl")
    hf.save_llama(folder / "model")
    return folder


@pytest.fixture(scope="module", autouse=True)
def offline():
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HF_HUB_OFFLINE", "1")
        patch.setenv("HF_DATASETS_OFFLINE", "1")
        yield


def load(folder, *, moved=False):
    """Return the model without dropout, or one whose weights have been moved, as training would."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder / "model", dtype=torch.float32)
    if moved:
        generator = torch.Generator().manual_seed(1)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(torch.randn(parameter.shape, generator=generator), alpha=0.02)
    return model


def rows_of(lines):
    """Return the lines as a data set."""
    from datasets import Dataset

    return Dataset.from_list(lines)


def tokenizer(folder):
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(folder / "model")


def arguments(config, folder, **options):
    common = {"output_dir": str(folder / "out"), "report_to": "none", "use_cpu": True, "bf16": False, "fp16": False}
    batch = {"per_device_train_batch_size": PAIRS, "gradient_checkpointing": False, "disable_tqdm": True}
    return config(**common, **{**batch, **options})


def spec(folder, lines, objective, **changes):
    path = hf.write_lines(folder / f"{objective}.jsonl", lines)
    return {
        "version": 1,
        "task": "causal_lm",
        "precision": "fp32",
        "strategy": "single",
        "model": {"source": "hf", "path": str(folder / "model")},
        "data": {"source": "jsonl", "path": str(path), "max_length": 64, "packing": False, "shuffle": False},
        "steps": 1,
        "batch": {"size": PAIRS, "micro_size": PAIRS},
        "objective": objective,
        **changes,
    }


def own_loss(folder, lines, objective, **changes):
    """Return our mean loss of all examples with the moved model, and its gradients; the reference is the model."""
    document = parse_spec(spec(folder, lines, objective, **changes))
    task = select_task(document)
    model = task.build_model()
    ranks, precision = single_rank(), Precision("fp32", document.amp, CPU)
    if task.needs_reference:
        file = ReferenceFile(None, "")
        whole = ParallelModel(model, model)
        progress = ProgressCounter()
        fill_reference(
            task,
            whole,
            precision,
            ranks,
            file,
            batches=[torch.arange(len(lines)).numpy()],
            size=3,
            may_compute=True,
            progress=progress,
            reporter=NoReports(),
        )
    model.load_state_dict(load(folder, moved=True).state_dict())
    indices = torch.arange(len(lines)).numpy()
    batch = task.examples.train_batch(indices, CPU)
    if task.shares_mean:
        with torch.no_grad():
            task.set_shared_mean(task.shared_sum(model, task.shared_batch(indices, indices, CPU)) / len(lines))
    loss, measured = task.measured_loss(model, batch)
    loss = loss / task.weight(indices)
    loss.backward()
    return loss.item(), gradients(model), {name: value.item() / len(lines) for name, value in measured.items()}


class NoReports:
    def event(self, *args, **options):
        pass


def gradients(model):
    return {name: parameter.grad.clone() for name, parameter in model.named_parameters()}


def of_trainer(trainer):
    """Return TRL's loss of its first batch, and the gradients."""
    model = trainer.model.train()
    batch = trainer._prepare_inputs(next(iter(trainer.get_train_dataloader())))
    loss = trainer.compute_loss(model, batch)
    loss.backward()
    return loss.item(), gradients(model)


def assert_equal(own, other):
    """Compare losses and gradients; those of TRL's are of the whole batch."""
    assert own[0] == pytest.approx(other[0], rel=1e-5)
    assert own[1].keys() == other[1].keys()
    for name, gradient in other[1].items():
        assert torch.linalg.norm(own[1][name] - gradient) <= 1e-5 * torch.linalg.norm(gradient), name
    assert max(gradient.norm() for gradient in other[1].values()) > 1e-3


@pytest.mark.parametrize("loss_type", ["sigmoid", "hinge", "ipo"])
@pytest.mark.parametrize("kind", ["texts", "messages"])
def test_dpo(folder, loss_type, kind):
    from trl import DPOConfig, DPOTrainer

    lines = hf.preferences(PAIRS) if kind == "texts" else hf.chat_preferences(PAIRS)
    own = own_loss(folder, lines, "dpo", preference={"loss_type": loss_type, "beta": 0.3})
    trainer = DPOTrainer(
        model=load(folder, moved=True),
        ref_model=load(folder),
        args=arguments(DPOConfig, folder, loss_type=loss_type, beta=0.3, max_length=64),
        train_dataset=rows_of(lines),
        processing_class=tokenizer(folder),
    )
    assert_equal(own, of_trainer(trainer))


@pytest.fixture(scope="module")
def extract_prompt():
    from trl.data_utils import extract_prompt

    return extract_prompt


def test_prompts_of_conversations_are_the_common_beginning(extract_prompt):
    roles = ("user", "assistant")
    for turns in range(1, 5):
        common = [{"role": roles[turn % 2], "content": f"turn {turn}"} for turn in range(2 * turns - 1)]
        answers = {
            name: [*common, {"role": "assistant", "content": name}, {"role": "user", "content": f"why {name}?"}]
            for name in ("chosen", "rejected")
        }
        preference = parse_preference("preference", answers, {})
        own = {"prompt": preference.prompt, "chosen": preference.answers[0], "rejected": preference.answers[1]}
        assert own == extract_prompt(answers)


def test_kto(folder):
    from trl import KTOConfig, KTOTrainer

    # One answer to each prompt, so that the one before is to another prompt, as in TRL.
    lines = [
        {"prompt": pair["prompt"], "completion": pair["chosen" if number % 3 else "rejected"], "label": number % 3 > 0}
        for number, pair in enumerate(hf.preferences(PAIRS))
    ]
    weights = {"desirable_weight": 1.25, "undesirable_weight": 0.75}
    own = own_loss(folder, lines, "kto", preference={"beta": 0.3, **weights})
    trainer = KTOTrainer(
        model=load(folder, moved=True),
        ref_model=load(folder),
        args=arguments(KTOConfig, folder, beta=0.3, max_length=64, train_sampling_strategy="sequential", **weights),
        train_dataset=rows_of(lines),
        processing_class=tokenizer(folder),
    )
    assert own[2]["kl"] > 0, "a divergence of zero would hide how it is computed"
    assert_equal(own, of_trainer(trainer))


class TestFunctionsOfTrl:
    """ORPO and SimPO, of which TRL has the losses in `trl.experimental`. Its ORPO adds a likelihood of the prompt too;
    the paper's is of the chosen answer alone."""

    def logps(self, folder, lines):
        """Return the moved model, and the mean log-probabilities of both answers of each pair."""
        from trl.experimental.orpo import ORPOTrainer

        model = load(folder, moved=True).train()
        examples = select_task(parse_spec(spec(folder, lines, "orpo"))).examples
        tokens, labels, _ = examples.train_batch(torch.arange(PAIRS).numpy(), CPU)
        logits = model(input_ids=tokens).logits
        # TRL's function drops the first label and the last logit.
        logits, labels = (
            torch.cat([logits, logits[:, -1:]], dim=1),
            torch.cat([torch.full((len(labels), 1), -100), labels], dim=1),
        )
        return model, ORPOTrainer.get_batch_logps(logits, labels, average_log_prob=True).chunk(2)

    def test_orpo(self, folder):
        from trl.experimental.orpo import ORPOTrainer

        lines = hf.preferences(PAIRS)
        own = own_loss(folder, lines, "orpo", preference={"beta": 0.3})
        model, (chosen, rejected) = self.logps(folder, lines)
        trainer = SimpleNamespace(beta=0.3, accelerator=SimpleNamespace(device=CPU))
        odds, *_ = ORPOTrainer.odds_ratio_loss(trainer, chosen, rejected)
        loss = (-chosen - odds).mean()
        loss.backward()
        assert_equal(own, (loss.item(), gradients(model)))

    def test_simpo(self, folder):
        from trl.experimental.cpo import CPOTrainer

        lines = hf.preferences(PAIRS)
        own = own_loss(folder, lines, "simpo", preference={"beta": 2.5, "simpo_gamma": 1.2})
        model, (chosen, rejected) = self.logps(folder, lines)
        device = SimpleNamespace(device=CPU)
        trainer = SimpleNamespace(
            loss_type="simpo", beta=2.5, simpo_gamma=1.2, label_smoothing=0.0, alpha=0.0, accelerator=device
        )
        loss = CPOTrainer.cpo_loss(trainer, chosen, rejected)[0].mean()
        loss.backward()
        assert_equal(own, (loss.item(), gradients(model)))


def losses_of(trainer_class, **options):
    """Train with a trainer of TRL, and return the loss of each step."""
    losses = []

    class Recording(trainer_class):
        def training_step(self, *args, **named):
            loss = super().training_step(*args, **named)
            losses.append(loss.item())
            return loss

    Recording(**options).train()
    return losses


STEPS = 8
BATCH = 5
ADAMW = {"name": "adamw", "lr": 0.003, "weight_decay": 0.0, "clip_norm": 1.0}
TRAINING = {
    "per_device_train_batch_size": BATCH,
    "max_steps": STEPS,
    "learning_rate": 0.003,
    "lr_scheduler_type": "constant",
    "max_grad_norm": 1.0,
    "train_sampling_strategy": "sequential",
    "save_strategy": "no",
    "logging_steps": 1,
    "max_length": 64,
    "dataloader_drop_last": True,
}


def own_losses(folder, lines, objective, **changes):
    steps = {"steps": STEPS, "batch": {"size": BATCH, "micro_size": 2, "last": "drop"}, "optimizer": ADAMW}
    case = {"spec": spec(folder, lines, objective, log={"every_steps": 1}, **steps, **changes)}
    result = run_layout(1, {"own": case}, folder / f"steps-{objective}")
    return [float(value) for value in result[0]["own"]["series"]["train/loss"].values()]


class TestStepByStep:
    def test_sft(self, folder):
        from trl import SFTConfig, SFTTrainer

        lines = hf.completions(23)
        losses = losses_of(
            SFTTrainer,
            model=load(folder),
            args=arguments(SFTConfig, folder, **TRAINING),
            train_dataset=rows_of(lines),
            processing_class=tokenizer(folder),
        )
        assert len(losses) == STEPS
        assert own_losses(folder, lines, "sft") == pytest.approx(losses, rel=1e-5)
        assert losses[-1] < 0.8 * losses[0]

    def test_dpo(self, folder):
        from trl import DPOConfig, DPOTrainer

        lines = hf.preferences(23)
        losses = losses_of(
            DPOTrainer,
            model=load(folder),
            ref_model=load(folder),
            args=arguments(DPOConfig, folder, beta=0.3, **TRAINING),
            train_dataset=rows_of(lines),
            processing_class=tokenizer(folder),
        )
        own = own_losses(folder, lines, "dpo", preference={"beta": 0.3})
        assert own == pytest.approx(losses, rel=1e-4, abs=1e-6)
        assert losses[-1] < 0.8 * losses[0]
