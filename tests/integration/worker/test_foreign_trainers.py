"""Trainers of transformers and TRL as programs, on the same files as our runs: the losses of each step, and what is
trained. Optimizers are those of torch, transformers and peft."""

import itertools
import shutil

import pytest
import torch

from tests.integration.worker.foreign_trainers import (
    ADAMW,
    BATCH,
    RATE,
    STEPS,
    arguments,
    assert_equal_losses,
    assert_equal_values,
    losses_of,
)
from tests.integration.worker.harness import run_layout, series
from tests.support import hf
from trainyard.contract.spec.training_spec import parse_spec
from worker.data.sampler import GlobalBatches

pytestmark = [pytest.mark.heavy, pytest.mark.timeout(400)]
"""The first test waits for all of our runs."""

ADAFACTOR = {"name": "adafactor", "lr": 0.03, "clip_norm": 1.0}
NAMES = ("bad", "so so", "good")
PACKED = 3
"""Rows of a batch of packed completions."""
ADAPTERS = {
    "dora": ({"use_dora": True}, {"dora": True}),
    "rslora": ({"use_rslora": True, "rank_pattern": {"v_proj": 2}}, {"rslora": True, "rank_pattern": {"v_proj": 2}}),
    "whole": ({"modules_to_save": ["lm_head"]}, {"modules_to_save": ["lm_head"]}),
}
"""Options of peft's LoraConfig, and what a spec states instead."""


@pytest.fixture(scope="module", autouse=True)
def offline():
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HF_HUB_OFFLINE", "1")
        patch.setenv("HF_DATASETS_OFFLINE", "1")
        yield


def answers():
    """Return answers with labels."""
    pairs = enumerate(hf.preferences(50))
    kinds = ("rejected", "chosen", "chosen")
    return [{"prompt": pair["prompt"], "completion": pair[kinds[n % 3]], "label": n % 3 > 0} for n, pair in pairs]


def filling(tokenizer):
    """Return completions of which each pair fills a row of 64 tokens, and no other two do: packed by best fit, as TRL
    does, or by first fit, the rows are equal."""
    lines = []
    for number, first in enumerate(range(57, 57 - STEPS * PACKED, -1)):
        for size in (first, 64 - first):
            prompt, answer, letters = f"{number}:", "", itertools.cycle("qjxzkvwy")
            while len(tokenizer(prompt + answer)["input_ids"]) < size - 1:
                answer += next(letters)
            lines.append({"prompt": prompt, "completion": answer})
    return lines


class Cases:
    def __init__(self, folder):
        self.folder = folder
        hf.save_llama(folder / "model")
        texts = [{"text": f"The square of {n} is {n * n}."} for n in range(50)]
        self.files = {
            "texts": hf.write_lines(folder / "texts.jsonl", texts),
            "completions": hf.write_lines(folder / "completions.jsonl", hf.completions(50)),
            "pairs": hf.write_lines(folder / "pairs.jsonl", hf.preferences(50)),
            "chats": hf.write_lines(folder / "chats.jsonl", hf.chats(50)),
            "answers": hf.write_lines(folder / "answers.jsonl", answers()),
            "filling": hf.write_lines(folder / "filling.jsonl", filling(self.tokenizer())),
            "classes": self.labelled(folder / "classes.parquet"),
        }
        self.classifier = self.save_classifier()
        self.save_tagged()
        for name, (options, _) in ADAPTERS.items():
            self.save_adapter(name, moved=0.05, **options)
        self.save_adapter("new", moved=0)

    def labelled(self, path):
        from datasets import ClassLabel, Dataset, Features, Value

        features = Features({"text": Value("string"), "label": ClassLabel(names=NAMES)})
        texts = [f"{n} is {NAMES[n % 3]}" for n in range(48)]
        Dataset.from_dict({"text": texts, "label": [n % 3 for n in range(48)]}, features=features).to_parquet(path)
        return path

    def save_classifier(self):
        from transformers import AutoModelForSequenceClassification, AutoTokenizer

        torch.manual_seed(4)
        names = {"id2label": dict(enumerate(NAMES)), "label2id": {name: n for n, name in enumerate(NAMES)}}
        model = AutoModelForSequenceClassification.from_pretrained(self.folder / "model", num_labels=3, **names)
        model.save_pretrained(self.folder / "classifier")
        AutoTokenizer.from_pretrained(self.folder / "model").save_pretrained(self.folder / "classifier")
        return self.folder / "classifier"

    def save_tagged(self):
        """Save the model with a chat template that marks what the assistant says, as TRL needs it."""
        from transformers import AutoTokenizer

        shutil.copytree(self.folder / "model", self.folder / "tagged")
        tokenizer = AutoTokenizer.from_pretrained(self.folder / "model")
        content = "{{ m.content }}{{ eos_token }}"
        marked = "{% generation %}" + content + "{% endgeneration %}"
        by_role = "{% if m.role == 'assistant' %}" + marked + "{% else %}" + content + "{% endif %}"
        assert content in hf.TEMPLATE
        tokenizer.chat_template = hf.TEMPLATE.replace(content, by_role)
        tokenizer.save_pretrained(self.folder / "tagged")

    def save_adapter(self, name, moved, **options):
        """Save an adapter of peft as after a training, or with `moved=0` a new one."""
        from peft import LoraConfig, get_peft_model

        torch.manual_seed(6)
        config = LoraConfig(r=4, lora_alpha=8, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM", **options)
        model = get_peft_model(self.model(), config)
        generator = torch.Generator().manual_seed(3)
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.requires_grad:
                    parameter.add_(torch.randn(parameter.shape, generator=generator), alpha=moved)
        model.save_pretrained(self.folder / name)

    def spec(self, data, optimizer=ADAMW, adapter=None, **changes):
        kind = "parquet" if data == "classes" else "jsonl"
        unpacked = {} if data == "classes" else {"packing": False}
        lora = {"alpha": 8, "targets": ["q_proj", "v_proj"], "adapter": str(self.folder / str(adapter))}
        lora |= ADAPTERS[adapter][1] if adapter in ADAPTERS else {}
        return {
            "version": 1,
            "task": "causal_lm",
            "precision": "fp32",
            "strategy": "single",
            "model": {"source": "hf", "path": str(self.folder / "model")},
            "data": {"source": kind, "path": str(self.files[data]), "max_length": 64, "shuffle": False} | unpacked,
            "steps": STEPS,
            "batch": {"size": BATCH, "micro_size": 4, "last": "drop"},
            "optimizer": optimizer,
            "log": {"every_steps": 1},
            **({"lora_rank": 4, "lora": lora} if adapter else {}),
            **changes,
        }

    def own(self):
        """Return our runs."""
        decay = {**ADAMW, "weight_decay": 0.1, "no_decay": ["norms", "biases"]}
        schedule = {"schedule": {"name": "cosine"}}
        cases = {
            "trainer": self.spec("texts", decay, **schedule),
            "adafactor transformers": self.spec("texts", ADAFACTOR, **schedule),
            "adafactor torch": self.spec("texts", {**ADAFACTOR, "weight_decay": 0.1}, **schedule),
            "dpo new": self.spec("pairs", adapter="new", objective="dpo", preference={"beta": 0.3}),
            "dpo dora": self.spec("pairs", adapter="dora", objective="dpo", preference={"beta": 0.3}),
            "chats": self.spec("chats", model={"source": "hf", "path": str(self.folder / "tagged")}),
            "kto dora": self.spec("answers", adapter="dora", objective="kto", preference={"beta": 0.3}),
            "kto": self.spec("answers", objective="kto", preference={"beta": 0.3, "desirable_weight": 1.25}),
            "classes": self.spec(
                "classes", task="sequence_classification", model={"source": "hf", "path": str(self.classifier)}
            ),
        }
        shuffled = cases["kto"]["data"] | {"shuffle": True}
        cases["kto shuffled"] = cases["kto"] | {"data": shuffled, "batch": {"size": BATCH, "micro_size": 2}}
        packed = self.spec("filling", batch={"size": PACKED, "micro_size": 2})
        cases["packed"] = packed | {"data": packed["data"] | {"packing": True}}
        changed = {"lr": RATE / 3, "weight_decay": 0.1, "no_decay": ["norms", "biases"], "clip_norm": 0.5}
        cases["begun"], cases["changed"] = self.spec("texts"), self.spec("texts", ADAMW | changed)
        for name in ADAPTERS:
            cases[f"adamw {name}"] = self.spec("completions", adapter=name)
            cases[f"adafactor {name}"] = self.spec("completions", ADAFACTOR, adapter=name)
        in_parts = {"begun": {"run": "changing", "until": STEPS // 2}, "changed": {"run": "changing"}}
        return {
            name: {"spec": spec, "export": str(self.folder / f"own {name}"), **in_parts.get(name, {})}
            for name, spec in cases.items()
        }

    def model(self, adapter=None):
        from peft import PeftModel
        from transformers import AutoModelForCausalLM

        model = AutoModelForCausalLM.from_pretrained(self.folder / "model", dtype=torch.float32)
        return PeftModel.from_pretrained(model, self.folder / adapter, is_trainable=True) if adapter else model

    def tokenizer(self, name="model"):
        from transformers import AutoTokenizer

        return AutoTokenizer.from_pretrained(self.folder / name)

    def rows(self, data):
        from datasets import load_dataset

        kind = "parquet" if data == "classes" else "json"
        cache = str(self.folder / "cache")
        return load_dataset(kind, data_files=str(self.files[data]), split="train", cache_dir=cache)


@pytest.fixture(scope="module")
def cases(tmp_path_factory):
    return Cases(tmp_path_factory.mktemp("trainers"))


@pytest.fixture(scope="module")
def own(cases):
    return run_layout(1, cases.own(), cases.folder / "runs", seconds=300)


def adafactor(kind, model, **options):
    """Return Adafactor with an absolute rate that is relative to each parameter, of torch or of transformers."""
    from transformers.optimization import Adafactor

    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    if kind == "torch":
        return torch.optim.Adafactor(trained, lr=ADAFACTOR["lr"], **options)
    return Adafactor(trained, lr=ADAFACTOR["lr"], scale_parameter=True, relative_step=False, **options)


class TestTrainerOfTransformers:
    def options(self, cases, **changes):
        from transformers import DataCollatorForSeq2Seq, TrainingArguments

        tokenizer = cases.tokenizer()

        def encode(row):
            tokens = [*tokenizer(row["text"], add_special_tokens=False)["input_ids"], tokenizer.eos_token_id]
            return {"input_ids": tokens, "labels": tokens, "attention_mask": [1] * len(tokens)}

        halves = {"per_device_train_batch_size": BATCH // 2, "gradient_accumulation_steps": 2}
        # Without a warm-up, which begins one step later in transformers.
        schedule = {"lr_scheduler_type": "cosine", "weight_decay": 0.1}
        return {
            "model": cases.model(),
            "args": arguments(cases.folder, TrainingArguments, **halves, **schedule),
            "train_dataset": cases.rows("texts").map(encode, remove_columns=["text"]),
            "data_collator": DataCollatorForSeq2Seq(tokenizer),
            "micro_batches": 2,
            **changes,
        }

    def test_decay_schedule_and_accumulation(self, cases, own):
        from transformers import Trainer

        losses, model = losses_of(Trainer, **self.options(cases))
        assert_equal_losses(own, "trainer", losses)
        assert_equal_values(own, "trainer", model)

    def test_optimizer_that_is_changed_on_resume(self, cases, own):
        from transformers import Trainer, TrainerCallback, TrainingArguments

        class Change(TrainerCallback):
            def on_step_begin(self, args, state, control, optimizer, lr_scheduler, **others):
                if state.global_step == STEPS // 2:
                    args.max_grad_norm, lr_scheduler.base_lrs = 0.5, [RATE / 3] * 2
                    # The first group has the parameters that may decay.
                    for group, decay in zip(optimizer.param_groups, (0.1, 0.0), strict=True):
                        group |= {"lr": RATE / 3, "weight_decay": decay}

        plain = {"args": arguments(cases.folder, TrainingArguments), "micro_batches": 1, "callbacks": [Change()]}
        losses, model = losses_of(Trainer, **self.options(cases, **plain))
        parts = series(own, "begun") | series(own, "changed")
        assert list(parts.values()) == pytest.approx(losses, rel=1e-5)
        assert len(series(own, "changed")) == STEPS // 2
        assert_equal_values(own, "changed", model)

    @pytest.mark.parametrize("kind", ["torch", "transformers"])
    def test_adafactor(self, cases, own, kind):
        from transformers import Trainer, get_cosine_schedule_with_warmup

        options = self.options(cases)
        # transformers multiplies the decay by the scale of the parameter too.
        optimizer = adafactor(kind, options["model"], **({"weight_decay": 0.1} if kind == "torch" else {}))
        schedule = get_cosine_schedule_with_warmup(optimizer, 0, STEPS)
        losses, model = losses_of(Trainer, optimizers=(optimizer, schedule), **options)
        assert_equal_losses(own, f"adafactor {kind}", losses, rel=1e-5 if kind == "torch" else 3e-5)
        # transformers does not limit the smallest second moments, as torch does.
        assert_equal_values(own, f"adafactor {kind}", model, rel=1e-4 if kind == "torch" else 1e-2)

    def test_classes_of_a_table(self, cases, own):
        from transformers import (
            AutoModelForSequenceClassification,
            AutoTokenizer,
            DataCollatorWithPadding,
            Trainer,
            TrainingArguments,
        )

        tokenizer = AutoTokenizer.from_pretrained(cases.classifier)
        model = AutoModelForSequenceClassification.from_pretrained(cases.classifier, dtype=torch.float32)
        model.config.pad_token_id = tokenizer.pad_token_id
        losses, model = losses_of(
            Trainer,
            model=model,
            args=arguments(cases.folder, TrainingArguments),
            train_dataset=cases.rows("classes").map(lambda row: tokenizer(row["text"]), remove_columns=["text"]),
            data_collator=DataCollatorWithPadding(tokenizer),
        )
        assert_equal_losses(own, "classes", losses)
        assert_equal_values(own, "classes", model)


class TestTrl:
    @pytest.mark.parametrize("optimizer", ["adamw", "adafactor"])
    @pytest.mark.parametrize("adapter", ADAPTERS)
    def test_adapters_are_continued_step_by_step(self, cases, own, adapter, optimizer):
        from peft import PeftModel
        from trl import SFTConfig, SFTTrainer

        model = cases.model(adapter)
        own_optimizer = {"optimizers": (adafactor("torch", model), None)} if optimizer == "adafactor" else {}
        losses, model = losses_of(
            SFTTrainer,
            model=model,
            args=arguments(cases.folder, SFTConfig, max_length=64),
            train_dataset=cases.rows("completions"),
            processing_class=cases.tokenizer(),
            **own_optimizer,
        )
        case = f"{optimizer} {adapter}"
        assert list(series(own, case).values()) == pytest.approx(losses, rel=1e-5)
        loaded = PeftModel.from_pretrained(cases.model(), cases.folder / f"own {case}").eval()
        tokens = torch.arange(24).view(2, 12) * 7 % 200
        with torch.no_grad():
            expected, before = model.eval()(tokens).logits, cases.model(adapter).eval()(tokens).logits
            torch.testing.assert_close(loaded(tokens).logits, expected, rtol=0, atol=1e-4)
        assert (expected - before).abs().max() > 1e-2

    def test_chats(self, cases, own):
        from trl import SFTConfig, SFTTrainer

        losses, model = losses_of(
            SFTTrainer,
            model=cases.model(),
            args=arguments(cases.folder, SFTConfig, max_length=64, assistant_only_loss=True),
            train_dataset=cases.rows("chats"),
            processing_class=cases.tokenizer("tagged"),
        )
        assert_equal_losses(own, "chats", losses)
        assert_equal_values(own, "chats", model)

    @pytest.mark.parametrize("case", ["kto", "kto shuffled"])
    def test_kto(self, cases, own, case):
        from trl import KTOConfig, KTOTrainer

        rows = cases.rows("answers")
        if case == "kto shuffled":
            batches = GlobalBatches(len(rows), BATCH, seed=parse_spec(cases.spec("answers")).seed, last="drop")
            rows = rows.select([index for step in range(STEPS) for index in batches.at(step)])
        losses, model = losses_of(
            KTOTrainer,
            model=cases.model(),
            ref_model=cases.model(),
            args=arguments(cases.folder, KTOConfig, max_length=64, beta=0.3, desirable_weight=1.25),
            train_dataset=rows,
            processing_class=cases.tokenizer(),
        )
        assert_equal_losses(own, case, losses, rel=1e-4, falling=case == "kto")
        assert_equal_values(own, case, model, rel=1e-3)
        assert max(series(own, case, "train/kl").values()) > 0, "a divergence of zero would hide how it is computed"

    def test_packing(self, cases, own):
        from trl import SFTConfig, SFTTrainer

        # Packed rows are one after the other in TRL's batches, without padding.
        batch = {"packing": True, "per_device_train_batch_size": PACKED}
        losses, model = losses_of(
            SFTTrainer,
            model=cases.model(),
            args=arguments(cases.folder, SFTConfig, max_length=64, **batch),
            train_dataset=cases.rows("filling"),
            processing_class=cases.tokenizer(),
        )
        assert_equal_losses(own, "packed", losses)
        assert_equal_values(own, "packed", model)

    @pytest.mark.parametrize(
        ("objective", "adapter", "data"),
        [("dpo", "new", "pairs"), ("dpo", "dora", "pairs"), ("kto", "dora", "answers")],
    )
    def test_adapter_is_part_of_the_reference(self, cases, own, objective, adapter, data):
        import trl

        config, trainer = (getattr(trl, f"{objective.upper()}{part}") for part in ("Config", "Trainer"))
        losses, _ = losses_of(
            trainer,
            model=cases.model(adapter),
            args=arguments(cases.folder, config, max_length=64, beta=0.3),
            train_dataset=cases.rows(data),
            processing_class=cases.tokenizer(),
        )
        assert list(series(own, f"{objective} {adapter}").values()) == pytest.approx(losses, rel=1e-4, abs=1e-6)
        assert losses[-1] < losses[0]
