"""`trainyard.load` of a folder: each builtin computes what it did before its export; errors name the cause."""

import json
import shutil

import pytest
import torch

import trainyard
from tests.support import hf
from tests.support.exports import hf_spec, make_export, spec_of, trained_module
from trainyard.loading.transforms import ImageTransform, VectorTransform
from worker.data.builtin import load_digits

TOKENS = torch.arange(24).view(2, 12) * 7 % 200


@torch.no_grad()
def logits_of(model):
    result = model(TOKENS)
    return result if isinstance(result, torch.Tensor) else result.logits


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    return hf.save_llama(tmp_path_factory.mktemp("base") / "llama")


def adapters(tmp_path, base, **changes):
    spec = hf_spec(base, lora_rank=2, **changes)
    module = trained_module(spec)
    return module, make_export(tmp_path, spec, module)


class TestBuiltinModels:
    @pytest.mark.parametrize("name", ["gpt", "llama"])
    @pytest.mark.parametrize(
        "changes",
        [
            {"model_tied": True},
            {"model_tied": False, "model_vocab": 300},
            {"lora_rank": 2, "model_tied": False},
            {"lora_rank": 2, "model_tied": True},
            {"lora_rank": 2, "lora": {"merge": True}},
            {"trainable": ["*norm*"]},
        ],
    )
    def test_language_model_has_the_logits_of_the_training(self, tmp_path, name, changes):
        spec = spec_of(name, **changes)
        module = trained_module(spec)
        folder = make_export(tmp_path, spec, module)
        state = torch.get_rng_state()
        model, tokenizer = trainyard.load(folder)
        assert (logits_of(model) - logits_of(module)).abs().max() <= 1e-5
        assert tokenizer("Ä b")["input_ids"] == list("Ä b".encode())
        assert not model.training
        assert torch.equal(torch.get_rng_state(), state)

    def test_digits_are_scaled_as_in_the_training(self, tmp_path):
        spec = spec_of("convnet")
        module = trained_module(spec)
        model, transform = trainyard.load(make_export(tmp_path, spec, module))
        scaled, _, _ = load_digits(0.2)
        raw = (scaled[:50] * 16).reshape(50, 64).numpy()
        with torch.no_grad():
            assert torch.equal(model(transform(raw)), module(scaled[:50]))
        assert transform.classes == tuple("0123456789")

    def test_perceptron(self, tmp_path):
        spec = spec_of("mlp")
        module = trained_module(spec)
        model, transform = trainyard.load(make_export(tmp_path, spec, module))
        x = torch.randn(5, 4)
        with torch.no_grad():
            assert torch.equal(model(transform(x.tolist())), module(x))

    @pytest.mark.parametrize("name", ["convnet", "mlp"])
    def test_adapters_of_a_network(self, tmp_path, name):
        spec = spec_of(name, lora_rank=2)
        module = trained_module(spec)
        model, transform = trainyard.load(make_export(tmp_path, spec, module))
        x = transform(torch.randint(2, 17, (3, 64)) if name == "convnet" else torch.randn(3, 4))
        with torch.no_grad():
            torch.testing.assert_close(model(x), module(x), rtol=1e-4, atol=1e-5)

    def test_base_that_is_drawn_differently_is_refused(self, tmp_path):
        spec = spec_of("gpt", lora_rank=2)
        folder = make_export(tmp_path, spec, trained_module(spec))
        note = json.loads((folder / "export.json").read_text())
        (folder / "export.json").write_text(json.dumps(note | {"seed": 5}))
        with pytest.raises(trainyard.LoadError, match=r"cannot be drawn again .* trainyard export a1 --merge"):
            trainyard.load(folder)


class TestModelsOfFolders:
    def test_whole_model_with_its_chat_template(self, tmp_path, base):
        spec = hf_spec(base)
        module = trained_module(spec)
        model, tokenizer = trainyard.load(str(make_export(tmp_path, spec, module)))
        assert torch.equal(logits_of(model), logits_of(module))
        assert tokenizer.chat_template == hf.TEMPLATE

    def test_adapters_are_added_to_their_base(self, tmp_path, base):
        module, folder = adapters(tmp_path, base)
        model, tokenizer = trainyard.load(folder)
        assert torch.equal(logits_of(model), logits_of(module))
        assert tokenizer.chat_template == hf.TEMPLATE

    def test_trained_tensors_are_added_to_their_base(self, tmp_path, base):
        spec = hf_spec(base, trainable=["model.layers.1.*"])
        module = trained_module(spec)
        model, tokenizer = trainyard.load(make_export(tmp_path, spec, module))
        assert torch.equal(logits_of(model), logits_of(module))
        assert tokenizer.chat_template == hf.TEMPLATE

    def test_absent_base_is_named_with_the_remedy(self, tmp_path, base):
        copy = shutil.copytree(base, tmp_path / "copy")
        module, folder = adapters(tmp_path, copy)
        moved = copy.rename(tmp_path / "moved")
        with pytest.raises(
            trainyard.LoadError, match=r"no folder .*/copy on this machine; name a copy .* base=, or ex"
        ):
            trainyard.load(folder)
        assert torch.equal(logits_of(trainyard.load(folder, base=moved).model), logits_of(module))

    def test_changed_base_is_refused(self, tmp_path, base):
        _, folder = adapters(tmp_path, base)
        other = hf.save_llama(tmp_path / "other", seed=9)
        with pytest.raises(trainyard.LoadError, match="is not the base model of the training"):
            trainyard.load(folder, base=other)

    def test_folder_that_no_job_has_written(self, base):
        model, tokenizer = trainyard.load(base)
        assert (type(model).__name__, tokenizer.eos_token) == ("LlamaForCausalLM", "<|end|>")

    def test_adapters_that_no_job_has_written(self, tmp_path, base):
        module, folder = adapters(tmp_path, base)
        (folder / "export.json").unlink()
        assert torch.equal(logits_of(trainyard.load(folder).model), logits_of(module))

    def test_type_of_the_weights_can_be_chosen(self, base):
        assert trainyard.load(base, dtype=torch.bfloat16).model.dtype == torch.bfloat16


class TestRefusals:
    def refusal(self, folder, **options):
        with pytest.raises(trainyard.LoadError) as caught:
            trainyard.load(folder, **options)
        return str(caught.value)

    @pytest.mark.parametrize("damage", ["content", "size", "missing"])
    def test_damaged_file(self, tmp_path, damage):
        folder = make_export(tmp_path, spec_of("mlp"), trained_module(spec_of("mlp")))
        path = folder / "model.safetensors"
        data = path.read_bytes()
        {
            "content": lambda: path.write_bytes(data[:-1] + bytes([data[-1] ^ 1])),
            "size": lambda: path.write_bytes(data[:-1]),
            "missing": path.unlink,
        }[damage]()
        text = {"content": "another digest", "size": f"{len(data) - 1} bytes", "missing": "cannot be read"}[damage]
        assert f"{path} " in self.refusal(folder)
        assert text in self.refusal(folder)

    def test_pickles_are_not_loaded(self, tmp_path, base):
        folder = shutil.copytree(base, tmp_path / "pickled")
        (folder / "model.safetensors").unlink()
        (folder / "pytorch_model.bin").write_bytes(b"cos\nsystem\n(S'touch owned'\ntR.")
        assert "has no *.safetensors" in self.refusal(folder)
        _, adapter = adapters(tmp_path, base)
        (adapter / "export.json").unlink()
        (adapter / "adapter_model.safetensors").rename(adapter / "adapter_model.bin")
        assert "has no adapter_model.safetensors" in self.refusal(adapter)

    def test_model_without_a_head_is_refused(self, tmp_path, base):
        from transformers import AutoModel

        AutoModel.from_pretrained(base).save_pretrained(tmp_path)
        text = self.refusal(tmp_path)
        assert "holds LlamaModel, which lacks weights of LlamaForCausalLM, such as lm_head.weight" in text

    def test_code_of_a_folder_is_not_run(self, tmp_path, base):
        folder = shutil.copytree(base, tmp_path / "code")
        config = json.loads((folder / "config.json").read_text())
        config |= {"model_type": "mine", "auto_map": {"AutoConfig": "evil.C", "AutoModelForCausalLM": "evil.M"}}
        (folder / "config.json").write_text(json.dumps(config))
        (folder / "evil.py").write_text(f"open({str(tmp_path / 'owned')!r}, 'w')")
        assert "cannot be loaded" in self.refusal(folder)
        assert not (tmp_path / "owned").exists()

    def test_model_of_the_jobs_own_code(self, tmp_path):
        from trainyard.contract.spec.training_spec import parse_spec

        spec = parse_spec({"task": "custom", "target": "task:build", "steps": 3})
        folder = make_export(tmp_path, spec, torch.nn.Linear(2, 3))
        assert "defined by the job's own code; build it and load the tensors" in self.refusal(folder)

    def test_path_that_leads_out_of_the_folder(self, tmp_path):
        folder = make_export(tmp_path, spec_of("mlp"), trained_module(spec_of("mlp")))
        note = json.loads((folder / "export.json").read_text())
        note["files"]["../x"] = {"size": 1, "sha256": ""}
        (folder / "export.json").write_text(json.dumps(note))
        assert "outside of the folder" in self.refusal(folder)

    def test_folder_without_a_model(self, tmp_path):
        assert "it holds no model" in self.refusal(tmp_path)
        assert "there is no folder" in self.refusal(tmp_path / "nowhere")

    def test_missing_packages_are_named(self, base, monkeypatch):
        from trainyard.loading import load as module

        monkeypatch.setattr(module, "find_spec", lambda name: None if name in ("torch", "transformers") else object())
        assert "needs torch; install what is missing with: pip install 'trainyard[worker,hf]'" in self.refusal(base)


class TestTransforms:
    @pytest.fixture
    def transform(self):
        from trainyard.contract.model_input import DIGITS

        return ImageTransform(DIGITS)

    @pytest.mark.parametrize("shape", [(64,), (5, 64), (8, 8), (5, 8, 8), (1, 8, 8), (5, 1, 8, 8)])
    def test_shapes_of_images(self, transform, shape):
        images = torch.randint(0, 17, shape)
        images.view(-1, 64)[:, 0] = 16
        assert torch.equal(transform(images.numpy()), images.reshape(-1, 1, 8, 8) / 16)

    @pytest.mark.parametrize("factor", [1 / 16, 1 / 255, 255 / 16, -1])
    def test_other_scales_are_errors(self, transform, factor):
        images = load_digits(0.2)[0] * 16
        assert len(transform(images)) == 1797
        with pytest.raises(ValueError, match="pass the pixels as the data set has them, from 0 to 16"):
            transform(images * factor)

    @pytest.mark.parametrize("values", [torch.zeros(7, 7), torch.zeros(2, 3, 8, 8), ["a"], [[1], [2, 3]], 3])
    def test_other_shapes_are_errors(self, transform, values):
        with pytest.raises(ValueError, match=r"not of 1 x 8 x 8 pixels|no array of numbers"):
            transform(values)

    def test_values_that_are_no_numbers_are_errors(self, transform):
        from trainyard.contract.model_input import VectorInput

        with pytest.raises(ValueError, match="pass the pixels"):
            transform(torch.full((8, 8), torch.nan))
        vectors = VectorTransform(VectorInput(size=2, outputs=1))
        assert vectors([1, 2]).shape == (1, 2)
        for wrong in ([1, 2, 3], [[1.0, float("inf")]], [[[1.0, 2.0]]]):
            with pytest.raises(ValueError, match=r"numbers each|infinite or NaN"):
                vectors(wrong)
