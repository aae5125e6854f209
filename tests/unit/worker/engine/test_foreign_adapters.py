"""Adapters that peft wrote are continued with the same outputs, and ours have the files that peft writes; an adapter
that cannot be continued is refused with the reason and what to do."""

import json
import re
from types import SimpleNamespace

import pytest
import torch

from tests.support import hf
from trainyard.contract.spec.training_spec import parse_spec
from worker.core.errors import RefusedError
from worker.engine.adapters import add_adapters, is_adapter
from worker.engine.initial_adapter import adapter_values, read_adapter
from worker.export.adapter import merged_weights, save_adapter

TOKENS = torch.arange(24).view(2, 12) * 7 % 50
ATTENTION = r".*\.layers\.1\.self_attn\.(q|v)_proj"

WRITTEN = {
    "lora": ({}, {}),
    "rslora": ({"use_rslora": True}, {"rslora": True}),
    "dora": ({"use_dora": True}, {"dora": True}),
    "dora_rslora": ({"use_dora": True, "use_rslora": True}, {"dora": True, "rslora": True}),
    "regular_expression": ({"target_modules": ATTENTION}, {"targets": ["*.layers.1.*.q_proj", "*.layers.1.*.v_proj"]}),
    "all_linear": ({"target_modules": "all-linear"}, {"targets": "auto"}),
    "some_layers": ({"layers_to_transform": [1]}, {"targets": ["*.1.self_attn.q_proj", "*.1.self_attn.v_proj"]}),
    "without_one": ({"exclude_modules": ["v_proj"]}, {"targets": ["q_proj"]}),
    "whole": (
        {"modules_to_save": ["lm_head", "embed_tokens", "model.norm"]},
        {"modules_to_save": ["lm_head", "embed_tokens", "model.norm"]},
    ),
    "ranks": (
        {"rank_pattern": {"q_proj": 2}, "alpha_pattern": {r"layers\.\d+\.self_attn\.v_proj": 32}},
        {"rank_pattern": {"q_proj": 2}, "alpha_pattern": {"v_proj": 32}},
    ),
    "ranks_of_all": (
        {"rank_pattern": {"layers.0.self_attn.q_proj": 2}, "use_rslora": True, "use_dora": True},
        {"rank_pattern": {"*.0.self_attn.q_proj": 2}, "rslora": True, "dora": True},
    ),
    "gaussian": ({"init_lora_weights": "gaussian"}, {}),
}
"""Options of peft's LoraConfig, and what a spec states instead."""
SPEC_OF_DEFAULT = {"alpha": 8, "targets": ["q_proj", "v_proj"]}


@pytest.fixture(scope="module", autouse=True)
def libraries():
    """Import what takes long, outside of a test's limit."""
    import peft
    import sentence_transformers  # noqa: F401
    import transformers

    return SimpleNamespace(peft=peft, transformers=transformers)


def llama(libraries, *, tied=False, vocabulary=50):
    torch.manual_seed(0)
    config = libraries.transformers.LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=32,
        tie_word_embeddings=tied,
    )
    return libraries.transformers.LlamaForCausalLM(config)


def spec_of(folder=None, task="causal_lm", **lora):
    own = {**SPEC_OF_DEFAULT, **lora, **({"adapter": str(folder)} if folder else {})}
    data = {"source": "images", "path": "/d"} if task == "image_classification" else {"source": "jsonl", "path": "/d"}
    document = {"task": task, "steps": 1, "lora_rank": 4, "lora": own, "data": data}
    return parse_spec({**document, "model": {"source": "hf", "path": "/model"}})


def moved(model):
    """Move the adapters' values, as training would."""
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.add_(torch.randn(parameter.shape, generator=generator), alpha=0.1)
    return model.eval()


def written_by_peft(libraries, base, folder, **options):
    """Return a model of peft whose adapter it has saved in a folder."""
    config = {"r": 4, "lora_alpha": 8, "target_modules": ["q_proj", "v_proj"], "task_type": "CAUSAL_LM", **options}
    model = moved(libraries.peft.get_peft_model(base, libraries.peft.LoraConfig(**config)))
    model.save_pretrained(folder)
    return model


def continued(base, spec):
    """Return a model with the adapter from which a training would start."""
    tensors = read_adapter(spec)
    add_adapters(base, spec)
    base.load_state_dict(adapter_values(base, tensors), strict=False)
    return base.eval()


@torch.no_grad()
def outputs(model, inputs=None):
    result = model(**(inputs or {"input_ids": TOKENS}))
    return result.logits if hasattr(result, "logits") else result.last_hidden_state


def keys_of(folder):
    from safetensors import safe_open

    with safe_open(folder / "adapter_model.safetensors", "pt") as file:
        return set(file.keys())


def trained(model):
    return {name: value.detach() for name, value in model.named_parameters() if is_adapter(name)}


@pytest.mark.parametrize("kind", WRITTEN)
class TestKinds:
    def test_training_starts_with_the_outputs_of_peft(self, libraries, tmp_path, kind):
        options, lora = WRITTEN[kind]
        theirs = written_by_peft(libraries, llama(libraries), tmp_path, **options)
        own = continued(llama(libraries), spec_of(tmp_path, **lora))
        assert not torch.allclose(outputs(theirs), outputs(llama(libraries).eval()), atol=1e-3)
        torch.testing.assert_close(outputs(own), outputs(theirs), rtol=0, atol=2e-7)

    def test_export_has_the_names_and_outputs_of_peft(self, libraries, tmp_path, kind):
        options, lora = WRITTEN[kind]
        written_by_peft(libraries, llama(libraries), tmp_path / "theirs", **options)
        own, spec = llama(libraries), spec_of(**lora)
        add_adapters(own, spec)
        moved(own)
        (tmp_path / "own").mkdir()
        save_adapter(tmp_path / "own", trained(own), llama(libraries), spec)
        assert keys_of(tmp_path / "own") == keys_of(tmp_path / "theirs")
        loaded = libraries.peft.PeftModel.from_pretrained(llama(libraries), tmp_path / "own").eval()
        torch.testing.assert_close(outputs(loaded), outputs(own), rtol=0, atol=2e-7)

    def test_merged_export_has_the_outputs_of_the_adapters(self, libraries, tmp_path, kind):
        own, spec = llama(libraries), spec_of(**WRITTEN[kind][1])
        add_adapters(own, spec)
        expected = outputs(moved(own))
        merged = llama(libraries)
        merged.load_state_dict(merged_weights(tmp_path, trained(own), llama(libraries), spec))
        torch.testing.assert_close(outputs(merged.eval()), expected, rtol=0, atol=1e-6)

    def test_export_is_continued(self, libraries, tmp_path, kind):
        own, lora = llama(libraries), WRITTEN[kind][1]
        add_adapters(own, spec_of(**lora))
        moved(own)
        save_adapter(tmp_path, trained(own), llama(libraries), spec_of(**lora))
        again = continued(llama(libraries), spec_of(tmp_path, **lora))
        assert torch.equal(outputs(again), outputs(own))


class TestOtherModels:
    def test_model_with_a_tied_head(self, libraries, tmp_path):
        theirs = written_by_peft(libraries, llama(libraries, tied=True), tmp_path, use_dora=True)
        own = continued(llama(libraries, tied=True), spec_of(tmp_path, dora=True))
        torch.testing.assert_close(outputs(own), outputs(theirs), rtol=0, atol=2e-7)

    def test_gpt2_with_layers_of_its_own(self, libraries, tmp_path):
        def gpt2():
            torch.manual_seed(0)
            config = libraries.transformers.GPT2Config(vocab_size=50, n_embd=16, n_layer=2, n_head=2, n_positions=32)
            return libraries.transformers.GPT2LMHeadModel(config)

        options = {"target_modules": ["c_attn", "c_proj"], "fan_in_fan_out": True, "use_dora": True}
        theirs = written_by_peft(libraries, gpt2(), tmp_path, **options)
        own = continued(gpt2(), spec_of(tmp_path, targets=["c_attn", "c_proj"], dora=True))
        torch.testing.assert_close(outputs(own), outputs(theirs), rtol=0, atol=2e-7)

    def test_classifier_with_its_head(self, libraries, tmp_path):
        def classifier():
            torch.manual_seed(0)
            config = llama(libraries).config
            config.num_labels, config.pad_token_id = 3, 0
            return libraries.transformers.LlamaForSequenceClassification(config)

        theirs = written_by_peft(libraries, classifier(), tmp_path, task_type="SEQ_CLS")
        own = continued(classifier(), spec_of(tmp_path, task="sequence_classification"))
        torch.testing.assert_close(outputs(own), outputs(theirs), rtol=0, atol=2e-7)

    def test_embedding_model(self, libraries, tmp_path):
        def body():
            return llama(libraries).model

        theirs = written_by_peft(libraries, body(), tmp_path, task_type="FEATURE_EXTRACTION")
        own = continued(body(), spec_of(tmp_path, task="text_embedding"))
        torch.testing.assert_close(outputs(own), outputs(theirs), rtol=0, atol=2e-7)

    def test_images_with_convolutions(self, libraries, tmp_path):
        def vit():
            torch.manual_seed(0)
            sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
            config = libraries.transformers.ViTConfig(image_size=8, patch_size=4, num_labels=3, **sizes)
            return libraries.transformers.ViTForImageClassification(config)

        layers = ["q_proj", "v_proj", "projection"]
        options = {"task_type": None, "modules_to_save": ["classifier"], "use_dora": True}
        theirs = written_by_peft(libraries, vit(), tmp_path, target_modules=layers, **options)
        own = continued(vit(), spec_of(tmp_path, task="image_classification", targets=layers, dora=True))
        inputs = {"pixel_values": torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(0))}
        torch.testing.assert_close(outputs(own, inputs), outputs(theirs, inputs), rtol=0, atol=2e-7)


def test_transformers_writes_adapters_that_are_continued(libraries, tmp_path):
    model = llama(libraries)
    model.add_adapter(libraries.peft.LoraConfig(r=4, lora_alpha=8, target_modules=["q_proj", "v_proj"], use_dora=True))
    moved(model).save_pretrained(tmp_path)
    own = continued(llama(libraries), spec_of(tmp_path, dora=True))
    torch.testing.assert_close(outputs(own), outputs(model), rtol=0, atol=2e-7)


def test_sentence_transformers_writes_adapters_with_their_pooling(libraries, tmp_path):
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import Pooling, Transformer

    hf.save_llama(tmp_path / "model")
    model = SentenceTransformer(modules=[Transformer(str(tmp_path / "model")), Pooling(64, "cls")])
    model.add_adapter(libraries.peft.LoraConfig(r=4, lora_alpha=8, target_modules=["q_proj", "v_proj"]))
    moved(model).save(str(tmp_path / "adapter"))
    spec = spec_of(tmp_path / "adapter", task="text_embedding")
    with pytest.raises(RefusedError, match=r"^embedding\.pooling: is `mean`, .* has 'cls'") as refused:
        read_adapter(spec)
    assert refused.value.hint.startswith("Set embedding.pooling to first")
    first = spec.model_copy(update={"embedding": spec.embedding.model_copy(update={"pooling": "first"})})
    own = continued(libraries.transformers.AutoModel.from_pretrained(tmp_path / "model"), first)
    torch.testing.assert_close(outputs(own), outputs(model[0].auto_model), rtol=0, atol=2e-7)


def test_earlier_exports_of_dora_are_continued(libraries, tmp_path):
    from safetensors.torch import load_file, save_file

    theirs = written_by_peft(libraries, llama(libraries), tmp_path, use_dora=True)
    file = tmp_path / "adapter_model.safetensors"
    renamed = {re.sub("(magnitude_vector)$", r"\1.weight", name): value for name, value in load_file(file).items()}
    assert renamed.keys() != keys_of(tmp_path)
    save_file(renamed, file)
    own = continued(llama(libraries), spec_of(tmp_path, dora=True))
    torch.testing.assert_close(outputs(own), outputs(theirs), rtol=0, atol=2e-7)


REFUSED = {
    "adalora": ("AdaLoraConfig", {"r": None, "init_r": 4, "target_r": 2, "total_step": 9}, "of kind ADALORA"),
    "ia3": ("IA3Config", {"feedforward_modules": []}, "of kind IA3"),
    "loha": ("LoHaConfig", {"r": 4}, "of kind LOHA"),
    "lokr": ("LoKrConfig", {"r": 4}, "of kind LOKR"),
    "prefix": ("PrefixTuningConfig", {"num_virtual_tokens": 2}, "of kind PREFIX_TUNING"),
    "prompt": ("PromptTuningConfig", {"num_virtual_tokens": 2}, "of kind PROMPT_TUNING"),
    "bias": ("LoraConfig", {"bias": "all"}, "trained biases"),
    "own_bias": ("LoraConfig", {"lora_bias": True}, "adapters with biases"),
    "replication": ("LoraConfig", {"layer_replication": [(0, 2), (1, 2)]}, "repeats layers"),
    "tokens": ("LoraConfig", {"trainable_token_indices": [1, 2]}, "embeddings of single tokens"),
    "pissa": ("LoraConfig", {"init_lora_weights": "pissa"}, "init_lora_weights `pissa`"),
    "olora": ("LoraConfig", {"init_lora_weights": "olora"}, "init_lora_weights `olora`"),
    "invocation": ("LoraConfig", {"alora_invocation_tokens": [3]}, "invocation tokens"),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_what_cannot_be_continued_is_refused_with_a_remedy(libraries, tmp_path, kind):
    name, options, reason = REFUSED[kind]
    prompt = "num_virtual_tokens" in options
    common = {"task_type": "CAUSAL_LM"} | ({} if prompt else {"target_modules": ["q_proj", "v_proj"]})
    common |= {"r": 4, "lora_alpha": 8} if name == "LoraConfig" else {}
    config = getattr(libraries.peft, name)(**{**common, **{key: v for key, v in options.items() if v is not None}})
    libraries.peft.get_peft_model(llama(libraries), config).save_pretrained(tmp_path)
    with pytest.raises(RefusedError, match=re.escape(reason)) as refused:
        read_adapter(spec_of(tmp_path))
    assert str(refused.value).startswith("lora.adapter: ")
    assert re.search(r"Train new adapters" if prompt or kind == "invocation" else "peft", refused.value.hint)


def test_converted_adapter_of_pissa_is_continued(libraries, tmp_path):
    config = libraries.peft.LoraConfig(
        r=4, lora_alpha=8, target_modules=["q_proj", "v_proj"], init_lora_weights="pissa"
    )
    theirs = libraries.peft.get_peft_model(llama(libraries), config)
    theirs.save_pretrained(tmp_path / "initial")
    moved(theirs)
    theirs.save_pretrained(tmp_path / "adapter", path_initial_model_for_weight_conversion=tmp_path / "initial")
    document = spec_of(tmp_path / "adapter", alpha=16).model_dump(mode="json", by_alias=True)
    own = continued(llama(libraries), parse_spec({**document, "lora_rank": 8}))
    torch.testing.assert_close(outputs(own), outputs(theirs), rtol=0, atol=1e-6)


class TestFields:
    """Fields of adapter_config.json that this release does not know."""

    @pytest.mark.parametrize("value", [None, False, [], {}, ""])
    def test_unset_field_has_no_effect(self, libraries, tmp_path, value):
        self.write(libraries, tmp_path, value)
        assert read_adapter(spec_of(tmp_path))

    def test_field_that_is_set_is_refused(self, libraries, tmp_path):
        self.write(libraries, tmp_path, {"a": 1})
        with pytest.raises(RefusedError, match="sets `use_later` in its adapter_config"):
            read_adapter(spec_of(tmp_path))

    def test_config_of_an_early_version_is_read(self, libraries, tmp_path):
        written_by_peft(libraries, llama(libraries), tmp_path)
        early = {"peft_type": "LORA", "r": 4, "lora_alpha": 8, "bias": "none", "target_modules": ["q_proj", "v_proj"]}
        (tmp_path / "adapter_config.json").write_text(json.dumps(early))
        assert read_adapter(spec_of(tmp_path))

    def write(self, libraries, folder, value):
        written_by_peft(libraries, llama(libraries), folder)
        file = folder / "adapter_config.json"
        file.write_text(json.dumps({**json.loads(file.read_text()), "use_later": value}))


MISMATCHED = {
    "targets": {"target_modules": ["q_proj", "down_proj"]},
    "part_of_the_layers": {"target_modules": ATTENTION},
    "whole": {"modules_to_save": ["lm_head", "norm"]},
    "ranks": {"rank_pattern": {"v_proj": 2}},
    "ranks_and_scales": {"rank_pattern": {"0.self_attn.q_proj": 2, "v_proj": 1}, "alpha_pattern": {"q_proj": 12}},
    "properties": {"r": 3, "lora_alpha": 5, "use_dora": True, "use_rslora": True},
}


@pytest.mark.parametrize("kind", MISMATCHED)
def test_remedies_make_a_spec_that_continues_the_adapter(libraries, tmp_path, kind):
    theirs = written_by_peft(libraries, llama(libraries), tmp_path, **MISMATCHED[kind])
    spec, remedies = spec_of(tmp_path), 0
    while remedies < 6:
        try:
            own = continued(llama(libraries), spec)
            break
        except RefusedError as error:
            remedies += 1
            document = spec.model_dump(mode="json", by_alias=True)
            for field, value in re.findall(r"(lora[\w.]+) to (.+?)(?= and lora|\.$)", error.hint):
                section = document["lora"] if field != "lora_rank" else document
                section[field.removeprefix("lora.")] = json.loads(value)
            spec = parse_spec(document)
    assert remedies
    torch.testing.assert_close(outputs(own), outputs(theirs), rtol=0, atol=2e-7)


class TestOtherFiles:
    def test_adapted_embedding_is_refused(self, libraries, tmp_path):
        written_by_peft(libraries, llama(libraries), tmp_path, target_modules=["q_proj", "embed_tokens"])
        with pytest.raises(RefusedError, match="embeddings are not"):
            continued(llama(libraries), spec_of(tmp_path, targets=["q_proj"]))

    @pytest.mark.parametrize("tied", [True, False])
    @pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
    def test_copies_of_the_embeddings_are_left_out(self, libraries, tmp_path, tied, dtype):
        theirs = written_by_peft(libraries, llama(libraries, tied=tied), tmp_path)
        theirs.to(dtype).save_pretrained(tmp_path, save_embedding_layers=True)
        assert any("embed_tokens" in name for name in keys_of(tmp_path))
        own = continued(llama(libraries, tied=tied), spec_of(tmp_path))
        torch.testing.assert_close(
            outputs(own), outputs(theirs).float(), rtol=0, atol=2e-7 if dtype.itemsize > 2 else 2e-2
        )

    def test_changed_embeddings_are_named_with_the_remedy(self, libraries, tmp_path):
        base = llama(libraries)
        theirs = written_by_peft(libraries, base, tmp_path)
        with torch.no_grad():
            base.get_input_embeddings().weight.add_(0.1)
        theirs.save_pretrained(tmp_path, save_embedding_layers=True)
        with pytest.raises(RefusedError, match=r"also has base_model\.model\.model\.embed_tokens\.weight") as refused:
            continued(llama(libraries), spec_of(tmp_path))
        assert refused.value.hint == 'Set lora.modules_to_save to ["embed_tokens"].'

    def test_adapter_of_a_larger_vocabulary_is_refused(self, libraries, tmp_path):
        model = written_by_peft(libraries, llama(libraries, vocabulary=52), tmp_path)
        model.save_pretrained(tmp_path, save_embedding_layers=True)
        spec = spec_of(tmp_path, modules_to_save=["embed_tokens", "lm_head"])
        with pytest.raises(RefusedError, match="is of another model") as refused:
            continued(llama(libraries), spec)
        assert "the same vocabulary" in refused.value.hint

    def test_adapter_of_a_deeper_model_is_refused(self, libraries, tmp_path):
        deeper = llama(libraries).config
        deeper.num_hidden_layers = 3
        written_by_peft(libraries, libraries.transformers.LlamaForCausalLM(deeper), tmp_path)
        with pytest.raises(RefusedError, match=r"has no layer `model\.layers\.2\."):
            continued(llama(libraries), spec_of(tmp_path))

    def test_pickle_is_refused(self, libraries, tmp_path):
        model = written_by_peft(libraries, llama(libraries), tmp_path)
        (tmp_path / "adapter_model.safetensors").unlink()
        model.save_pretrained(tmp_path, safe_serialization=False)
        with pytest.raises(RefusedError, match="a pickle") as refused:
            read_adapter(spec_of(tmp_path))
        assert "save it again" in refused.value.hint
