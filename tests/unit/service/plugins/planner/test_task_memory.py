"""Memory of the tasks that classify or embed: planned, and measured in a step of the engine."""

import json

import pytest
from PIL import Image
from transformers import (
    AutoTokenizer,
    BertConfig,
    BertForMaskedLM,
    LlamaConfig,
    LlamaForCausalLM,
    ViTConfig,
    ViTForImageClassification,
)
from transformers.models.vit.image_processing_pil_vit import ViTImageProcessorPil

from service.plugins.planner.devices import Device
from service.plugins.planner.fit import Estimate, FitEstimator
from service.plugins.planner.model_reader import ModelReader
from service.plugins.planner.proposals import exceeds_memory
from service.plugins.planner.task_memory import MAX_TEXT_TOKENS
from tests.support import hf
from tests.support.images import encoded, write_folder
from tests.support.ranks import single_rank
from tests.support.step_memory import measure
from trainyard.contract.allowed_roots import UNRESTRICTED_ROOTS
from trainyard.contract.spec.resolve import resolve
from trainyard.contract.spec.sections import HfModel
from trainyard.contract.spec.site import Site
from trainyard.contract.spec.training_spec import parse_spec
from worker.tasks import causal_lm
from worker.tasks.select import select_task

ALLOWED_ERROR = 0.1
"""As that of `bench.planner`, relative to the measured peak."""
LENGTH = 64
SIZES = {"hidden_size": 128, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 384}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("planned")
    hf.save_llama(folder / "tokenizer")
    tokenizer = AutoTokenizer.from_pretrained(folder / "tokenizer")
    vocabulary = {"vocab_size": len(tokenizer) + 1, "max_position_embeddings": 2 * LENGTH}
    dropouts = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    BertForMaskedLM(BertConfig(**SIZES, **vocabulary, **dropouts)).save_pretrained(folder / "bert")
    LlamaForCausalLM(LlamaConfig(**SIZES, **vocabulary, num_key_value_heads=2)).save_pretrained(folder / "llama")
    for name in ("bert", "llama"):
        tokenizer.save_pretrained(folder / name)
    ViTForImageClassification(ViTConfig(**SIZES, image_size=32, patch_size=4)).save_pretrained(folder / "vit")
    ViTImageProcessorPil(size={"height": 32, "width": 32}).save_pretrained(folder / "vit")
    long = json.decoder.__doc__ * 40
    texts = [long[n:] if n % 4 else long[n : n + 100] for n in range(64)]
    labelled = [{"text": text, "label": str(n % 2)} for n, text in enumerate(texts)]
    pairs = [{"anchor": text, "positive": f"{n} {text}"} for n, text in enumerate(texts)]
    hf.write_lines(folder / "sequence_classification.jsonl", labelled)
    hf.write_lines(folder / "text_embedding.jsonl", pairs)
    pictures = [(encoded(Image.new("RGB", (32, 32), (n, 0, 0))), f"class {n % 2}") for n in range(32)]
    write_folder(folder / "images", pictures)
    return folder


def spec_of(folder, model, task, **changes):
    images = {"source": "images", "path": str(folder / "images")}
    texts = {"source": "jsonl", "path": str(folder / f"{task}.jsonl"), "max_length": LENGTH}
    size = 16 if task == "sequence_classification" else 4
    document = {
        "task": task,
        "model": {"source": "hf", "path": str(folder / model)},
        "data": images if model == "vit" else texts,
        "steps": 4,
        "strategy": "single",
        "precision": "fp32",
        "batch": {"size": size, "micro_size": size},
        "embedding": {"group_size": 4} if task == "text_embedding" else {},
    }
    return resolve(parse_spec(document | changes), Site(accelerator="cpu"))


def estimator_of(spec, devices=()):
    model = ModelReader().find(spec, UNRESTRICTED_ROOTS, "ada")
    assert model.structure is not None, model.unknown
    return FitEstimator(model.structure, list(devices), model.context)


def planned(spec):
    estimate = estimator_of(spec).estimate(spec)
    assert isinstance(estimate, Estimate)
    return estimate


CHANGES = ({}, {"precision": "bf16"}, {"activation_checkpointing": "full"}, {"lora_rank": 8})
CASES = [
    *(("vit", "image_classification", changes) for changes in CHANGES),
    *(("bert", "sequence_classification", changes) for changes in CHANGES),
    *(("llama", "text_embedding", changes) for changes in CHANGES[2:]),
    # Processors without instructions for bf16 take 8 s for each of them.
    *(
        pytest.param(model, "text_embedding", {"precision": "bf16"}, marks=pytest.mark.heavy)
        for model in ("bert", "llama")
    ),
    ("bert", "text_embedding", {}),
    ("llama", "sequence_classification", {"lora_rank": 8}),
]


@pytest.mark.cpu_seconds(5)
@pytest.mark.parametrize(("model", "task", "changes"), CASES)
def test_planned_memory_is_the_measured_one(folder, model, task, changes):
    spec = spec_of(folder, model, task, **changes)
    measured = measure(spec, select_task(spec), single_rank())
    estimate = planned(spec)
    assert estimate.peak == pytest.approx(measured["peak"], rel=ALLOWED_ERROR), estimate.memory
    trainable = estimator_of(spec).model(spec).trainable
    assert trainable.structure.count == measured["parameters"]
    assert trainable.trained_count == measured["trained"]


class TestBounds:
    """Of texts, only the longest that there can be are known."""

    def estimate(self, folder, memory, **changes):
        spec = spec_of(folder, "bert", "sequence_classification", **changes)
        estimator = estimator_of(spec, [Device("a", memory, memory)])
        return estimator, spec, estimator.estimate(spec)

    def test_long_texts_may_not_fit_and_are_not_rejected(self, folder):
        batch = {"size": 4096, "micro_size": 4096}
        estimator, spec, estimate = self.estimate(folder, 2 * 2**30, batch=batch)
        assert estimate.peak > 2 * 2**30 > estimate.least
        assert estimator.fits(estimate) is None
        assert exceeds_memory(estimator, spec) == []

    def test_state_that_fits_no_device_is_rejected(self, folder):
        estimator, spec, estimate = self.estimate(folder, 2**20)
        assert estimator.fits(estimate) is False
        (problem,) = exceeds_memory(estimator, spec)
        assert problem.param == "strategy"

    def test_automatic_size_is_one_with_which_the_longest_texts_fit(self, folder):
        _, _, estimate = self.estimate(folder, 2 * 2**30, batch={"size": 4096})
        assert estimate.micro_size < 4096
        assert self.estimate(folder, 2**38, batch={"size": 4096})[2].micro_size == 4096

    def test_images_have_one_size(self, folder):
        spec = spec_of(folder, "vit", "image_classification", batch={"size": 4096, "micro_size": 4096})
        estimator = estimator_of(spec, [Device("a", 2 * 2**30, 2 * 2**30)])
        assert estimator.fits(estimator.estimate(spec)) is False
        assert exceeds_memory(estimator, spec)


def test_texts_are_counted_up_to_the_context_and_pairs_as_two(folder):
    def activations(task, **data):
        spec = spec_of(folder, "bert", task)
        spec = spec.model_copy(update={"data": spec.data.model_copy(update=data)})
        return planned(spec).memory.parts["activations"]

    whole, half = (activations("sequence_classification", max_length=length) for length in (None, LENGTH))
    assert whole > 2 * half  # The context is twice as long.
    assert activations("text_embedding") == pytest.approx(2 * half, rel=0.01)  # 32 texts instead of 16.
    assert MAX_TEXT_TOKENS == causal_lm.MAX_ROW_TOKENS


@pytest.mark.parametrize(
    "config", [{"hidden_size": "x"}, {"image_size": [224, 224]}, {"patch_size": 0}, {"model_type": "swin"}]
)
def test_activations_of_other_models_are_not_known(folder, tmp_path, config):
    document = json.loads((folder / "vit" / "config.json").read_text()) | config
    (tmp_path / "config.json").write_text(json.dumps(document))
    (tmp_path / "model.safetensors").write_bytes((folder / "vit" / "model.safetensors").read_bytes())
    spec = spec_of(folder, "vit", "image_classification")
    spec = spec.model_copy(update={"model": HfModel(path=str(tmp_path))})
    estimate = planned(spec)
    assert estimate.memory is None
    assert estimate.least > 0


@pytest.mark.parametrize("model", ["bert", "llama"])
def test_images_for_a_model_of_texts_have_no_known_activations(folder, model):
    images = {"source": "images", "path": str(folder / "images")}
    assert planned(spec_of(folder, model, "image_classification", data=images)).memory is None
