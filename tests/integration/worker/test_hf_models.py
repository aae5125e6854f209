"""Hugging Face folders: the computed loss, and the messages for invalid folders."""

import json
import shutil

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch.nn import functional
from transformers import AutoModelForCausalLM, AutoTokenizer

from tests.support import hf
from trainyard.contract.allowed_roots import AllowedRoots
from trainyard.contract.spec.optimization import Loss
from trainyard.contract.spec.sections import HfModel
from trainyard.contract.spec.text_data import TextFiles
from worker.core.errors import RefusedError
from worker.data.examples import IGNORED_LABEL
from worker.deferred.recording import CannotDeferError
from worker.tasks import hf_forward, language_loss
from worker.tasks.causal_lm import build_hf_on_text
from worker.tasks.cross_entropy import PLAIN, summed_cross_entropy
from worker.tasks.hf_forward import read_traits
from worker.tasks.hf_model import HfFolder
from worker.tasks.language_loss import UNCHANGED

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    root = tmp_path_factory.mktemp("models")
    hf.save_llama(root / "plain")
    hf.save_llama(root / "tied", tied=True)
    hf.write_lines(root / "text.jsonl", hf.texts(12))
    hf.write_lines(root / "chat.jsonl", hf.chats(6))
    hf.write_lines(root / "completion.jsonl", hf.completions(8))
    return root


@pytest.fixture
def copy(folder, tmp_path):
    return shutil.copytree(folder / "plain", tmp_path / "model")


def task(folder, data, model="plain", terms=PLAIN, **options):
    lines = TextFiles(path=str(folder / f"{data}.jsonl"), **options)
    return build_hf_on_text(HfModel(path=str(folder / model)), lines, loss=terms)


def everything(built):
    return built.examples.train_batch(np.arange(built.examples.train), CPU)


def refusal(path):
    with pytest.raises(RefusedError) as caught:
        HfFolder(str(path)).load(packed=True)
    assert str(caught.value).startswith(f"model.path: {path} ")
    return str(caught.value).removeprefix(f"model.path: {path} ")


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "additional_chat_templates/x.jinja"])
def test_link_out_of_the_allowed_roots_is_refused(copy, tmp_path, name):
    roots = AllowedRoots(allowed=(str(copy),))
    HfFolder(str(copy), roots)
    (copy / name).parent.mkdir(exist_ok=True)
    if (copy / name).exists():
        (copy / name).rename(tmp_path / "outside")
    else:
        (tmp_path / "outside").write_text("x")
    (copy / name).symlink_to(tmp_path / "outside")
    with pytest.raises(RefusedError, match="leads out of the folders that this service allows"):
        HfFolder(str(copy), roots)
    HfFolder(str(copy), AllowedRoots(allowed=(str(tmp_path),)))


def test_file_that_is_replaced_after_the_check_is_not_read(copy, tmp_path):
    secret = tmp_path / "secret"
    secret.write_text("secret")
    folder = HfFolder(str(copy), AllowedRoots(allowed=(str(copy),)))
    for path in list(copy.iterdir()):
        path.unlink()
        path.symlink_to(secret)
    assert folder.tokenizer.chat_template == hf.TEMPLATE
    assert folder.load(packed=False).config.hidden_size == 64
    folder.defer(packed=False)


@pytest.mark.parametrize(
    ("name", "key"),
    [("tokenizer_config.json", "vocab"), ("special_tokens_map.json", "vocab"), ("tokenizer.json", "model")],
)
def test_vocabulary_is_no_path_of_another_file(copy, tmp_path, name, key):
    """transformers gives a text to classes of tokenizers, which open it and read a token from each line."""
    secret = tmp_path / "secret"
    secret.write_text("[UNK]\n[CLS]\n[SEP]\n[PAD]\n[MASK]\nsecret\n")
    (copy / "tokenizer.json").unlink()
    (copy / "tokenizer_config.json").write_text('{"tokenizer_class": "BertTokenizer"}')
    if key == "model":
        model = {"type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "##", "vocab": str(secret)}
        content = {"version": "1.0", "added_tokens": [], "model": {**model, "max_input_chars_per_word": 9}}
    else:
        content = {"tokenizer_class": "BertTokenizer", key: str(secret)}
    (copy / name).write_text(json.dumps(content))
    try:
        tokens = HfFolder(str(copy)).tokenizer.get_vocab()
    except RefusedError:
        return
    assert "secret" not in tokens


def test_error_of_a_loader_names_the_folder_of_the_user(copy):
    (copy / "tokenizer.json").unlink()
    (copy / "tokenizer_config.json").write_text("{")
    with pytest.raises(RefusedError) as caught:
        _ = HfFolder(str(copy)).tokenizer
    assert "trainyard-model-" not in str(caught.value)


def test_hidden_files_of_a_folder_are_its_own(copy, tmp_path):
    """Downloads and git leave hidden files, which no loader opens. Links to them are refused."""
    roots = AllowedRoots(allowed=(str(tmp_path),))
    (copy / ".cache" / "download").mkdir(parents=True)
    (copy / ".cache" / "download" / "config.json.metadata").write_text("x")
    (copy / ".gitattributes").write_text("x")
    HfFolder(str(copy), roots)
    for name, target in (("vocab.txt", "model/.gitattributes"), ("merges.txt", ".netrc")):
        (tmp_path / target).touch()
        (copy / name).symlink_to(tmp_path / target)
        HfFolder(str(copy), AllowedRoots(allowed=(str(tmp_path),), hidden=True))
        with pytest.raises(RefusedError, match=r"^model\.path: .* has the hidden name"):
            HfFolder(str(copy), roots)
        (copy / name).unlink()
    (copy / "model.safetensors").rename(copy / ".model.safetensors")
    index = {"weight_map": {"a": ".model.safetensors"}}
    (copy / "model.safetensors.index.json").write_text(json.dumps(index))
    shutil.copy(copy / ".model.safetensors", copy / "other.safetensors")
    with pytest.raises(RefusedError, match=r"names '\.model\.safetensors', which is no"):
        HfFolder(str(copy), roots)


def test_hidden_folder_is_refused(copy, tmp_path):
    hidden = copy.rename(tmp_path / ".model")
    (tmp_path / "link").symlink_to(hidden)
    for path in (hidden, tmp_path / "link"):
        with pytest.raises(RefusedError, match=r"^model\.path: .* has the hidden name `\.model`"):
            HfFolder(str(path), AllowedRoots(allowed=(str(tmp_path),)))
    HfFolder(str(hidden), AllowedRoots(allowed=(str(hidden),)))


def rewrite(change):
    def apply(path):
        tensors = load_file(path)
        change(tensors)
        save_file(tensors, path, {"format": "pt"})

    return apply


def truncate(path):
    path.write_bytes(path.read_bytes()[:-8])


UNSUITABLE = {
    "truncated": (truncate, "incomplete|InvalidHeader|header"),
    "another tensor": (rewrite(lambda t: t.update(more=torch.ones(1))), "`more` of the files is no parameter"),
    "a missing tensor": (rewrite(lambda t: t.pop("model.norm.weight")), "`model.norm.weight` has 0 tensors"),
    "another shape": (rewrite(lambda t: t.update({"model.norm.weight": torch.ones(3)})), r"F32 of shape \[3\]"),
    "integers": (
        rewrite(lambda t: t.update({"model.norm.weight": torch.ones(64, dtype=torch.int8)})),
        "is I8 of shape",
    ),
}


class TestDeferred:
    @pytest.mark.parametrize(("change", "message"), UNSUITABLE.values(), ids=UNSUITABLE)
    def test_folder_that_does_not_fit_is_loaded_whole(self, copy, change, message):
        change(copy / "model.safetensors")
        with pytest.raises(CannotDeferError, match=message):
            HfFolder(str(copy)).defer(packed=True)

    def test_tied_weights_that_are_stored_twice_are_loaded_whole(self, folder, tmp_path):
        path = shutil.copytree(folder / "tied", tmp_path / "tied")
        rewrite(lambda t: t.update({"lm_head.weight": t["model.embed_tokens.weight"] + 1}))(path / "model.safetensors")
        with pytest.raises(CannotDeferError, match="has 2 tensors in the files"):
            HfFolder(str(path)).defer(packed=True)

    @pytest.mark.parametrize("model", ["plain", "tied"])
    def test_traits_equal_those_of_the_whole_model(self, folder, model):
        traits = HfFolder(str(folder / model)).defer(packed=True).examination.run()
        whole = AutoModelForCausalLM.from_pretrained(folder / model)
        assert traits == read_traits(whole, packed=True) == (UNCHANGED, True, (16, ""))

    def test_model_that_mixes_packed_examples_is_refused(self, folder, monkeypatch):
        deferred = HfFolder(str(folder / "plain")).defer(packed=True)
        forward = type(deferred.module).forward
        monkeypatch.setattr(
            type(deferred.module), "forward", lambda self, position_ids=None, **named: forward(self, **named)
        )
        traits = deferred.examination.run()
        assert traits[:2] == (UNCHANGED, False)
        with pytest.raises(RefusedError, match="attend to each other"):
            deferred.examination.apply(traits)

    def test_undeclared_scale_of_logits_has_no_rule(self, folder, monkeypatch):
        deferred = HfFolder(str(folder / "plain")).defer(packed=False)
        forward = type(deferred.module.lm_head).forward
        calls = iter((2.0, 1.0))
        monkeypatch.setattr(
            deferred.module.lm_head, "forward", lambda x: next(calls) * forward(deferred.module.lm_head, x)
        )
        assert deferred.examination.run()[:2] == (None, True)


class TestLoss:
    @pytest.mark.parametrize("model", ["plain", "tied"])
    def test_chunked_loss_equals_the_models_loss(self, folder, model, monkeypatch):
        built = task(folder, "completion", model, packing=False)
        batch = everything(built)

        def run():
            module = built.build_model()
            loss = built.loss_sum(module, batch)
            loss.backward()
            return loss, module

        monkeypatch.setattr(hf_forward, "_read_logit_rule", lambda module: None)
        whole, module = run()
        own = functional.cross_entropy(
            module(batch[0]).flatten(0, 1), batch[1].flatten(), reduction="sum", ignore_index=IGNORED_LABEL
        )
        assert whole.item() == pytest.approx(own.item(), rel=1e-6)
        monkeypatch.undo()
        monkeypatch.setattr(language_loss.summed_loss, "__kwdefaults__", {"max_logits": 5 * 330})
        loss, chunked = run()
        assert loss.item() == pytest.approx(whole.item(), rel=1e-6)
        for (name, one), other in zip(chunked.named_parameters(), module.parameters(), strict=True):
            assert torch.linalg.norm(one.grad - other.grad) <= 2e-6 * torch.linalg.norm(other.grad), name

    @pytest.mark.parametrize("rule", [UNCHANGED, None])
    def test_training_has_the_terms_and_evaluation_has_none(self, folder, rule, monkeypatch):
        monkeypatch.setattr(hf_forward, "_read_logit_rule", lambda module: rule)
        terms = Loss(label_smoothing=0.1, z_loss=0.01)
        built, plain = (task(folder, "completion", packing=False, terms=one) for one in (terms, PLAIN))
        module, batch = built.build_model(), everything(built)
        expected = summed_cross_entropy(module(batch[0]).flatten(0, 1), batch[1].flatten(), terms)
        assert built.loss_sum(module, batch).item() == pytest.approx(expected.item(), rel=1e-6)
        evaluated = built.evaluation_sums(module, batch)["eval/loss"]
        assert evaluated.item() == pytest.approx(plain.loss_sum(plain.build_model(), batch).item(), rel=1e-6)

    @pytest.mark.parametrize("data", ["text", "chat", "completion"])
    def test_packed_loss_equals_the_loss_of_separate_examples(self, folder, data):
        packed, unpacked = task(folder, data), task(folder, data, packing=False)
        assert packed.examples.train < unpacked.examples.train
        losses = [
            (t.loss_sum(t.build_model(), everything(t)).item(), t.weight(np.arange(t.examples.train)))
            for t in (packed, unpacked)
        ]
        assert losses[0] == pytest.approx(losses[1], rel=1e-6)

    def test_loss_of_a_model_with_capped_logits(self, tmp_path):
        from transformers import Gemma2Config, Gemma2ForCausalLM

        config = Gemma2Config(
            vocab_size=330,
            hidden_size=16,
            intermediate_size=32,
            num_hidden_layers=1,
            num_attention_heads=2,
            num_key_value_heads=1,
            head_dim=8,
            max_position_embeddings=64,
            final_logit_softcapping=0.05,
        )
        Gemma2ForCausalLM(config).save_pretrained(tmp_path)
        hf.train_tokenizer(["a"]).save_pretrained(tmp_path)
        module = HfFolder(str(tmp_path)).load(packed=True)
        tokens = torch.arange(8)[None]
        expected = functional.cross_entropy(module(tokens).flatten(0, 1), tokens.flatten(), reduction="sum")
        assert module(tokens, tokens).item() == pytest.approx(expected.item(), rel=1e-6)
        assert module(tokens).abs().max() <= 0.05


class TestChatData:
    def test_only_answers_are_trained(self, folder):
        built = task(folder, "chat", packing=False)
        tokenizer = HfFolder(str(folder / "plain")).tokenizer
        inputs, labels, _ = everything(built)
        assert tokenizer.decode(labels[0][labels[0] != IGNORED_LABEL]) == "1<|end|>2<|end|>"
        assert "And one more?" in tokenizer.decode(inputs[0])

    def test_template_that_rewrites_answers_trains_only_the_last(self, folder, copy):
        tokenizer = HfFolder(str(copy)).tokenizer
        tokenizer.chat_template = hf.TEMPLATE.replace(
            "{{ m.content }}", "{{ m.content if loop.last or m.role != 'assistant' else '-' }}"
        )
        tokenizer.save_pretrained(copy)
        built = build_hf_on_text(HfModel(path=str(copy)), TextFiles(path=str(folder / "chat.jsonl"), packing=False))
        _, labels, _ = everything(built)
        assert tokenizer.decode(labels[0][labels[0] != IGNORED_LABEL]) == "2<|end|>"


class TestRejectedFolder:
    def test_model_without_a_chat_template_is_refused_rather_than_each_line(self, folder, copy):
        tokenizer = AutoTokenizer.from_pretrained(copy)
        tokenizer.chat_template = None
        tokenizer.save_pretrained(copy)
        (copy / "chat_template.jinja").unlink(missing_ok=True)
        lines = TextFiles(path=str(folder / "chat.jsonl"), on_bad_line="skip", max_bad_lines=100)
        with pytest.raises(RefusedError, match=r"^model.path: the model's tokenizer has no chat template") as caught:
            build_hf_on_text(HfModel(path=str(copy)), lines)
        assert "chat template" in str(caught.value.hint)

    def test_missing_folder(self, tmp_path):
        assert refusal(tmp_path / "none") == "is not a folder that this node can read"

    def test_missing_configuration(self, copy):
        (copy / "config.json").unlink()
        assert refusal(copy) == "has no config.json: it is not the folder of a Hugging Face model"

    def test_broken_configuration(self, copy):
        (copy / "config.json").write_text("{")
        assert refusal(copy).startswith("does not hold a configuration that can be loaded: ")

    def test_pickled_weights(self, copy):
        (copy / "model.safetensors").rename(copy / "pytorch_model.bin")
        assert refusal(copy) == "has no *.safetensors file"

    @pytest.mark.parametrize("name", ["../outside.safetensors", "pytorch_model.bin", 1])
    def test_index_that_names_no_weights_of_the_folder(self, copy, name):
        (copy / "model.safetensors").rename(copy.parent / "outside.safetensors")
        (copy / "model-1.safetensors").write_bytes(b"")
        index = {"metadata": {}, "weight_map": {"lm_head.weight": name}}
        (copy / "model.safetensors.index.json").write_text(json.dumps(index))
        expected = f"has a model.safetensors.index.json that names {name!r}, which is no *.safetensors file of it"
        assert refusal(copy) == expected

    def test_index_without_a_weight_map(self, copy):
        (copy / "model.safetensors.index.json").write_text("[]")
        assert refusal(copy).startswith("has a model.safetensors.index.json without a `weight_map`")

    def test_missing_tokenizer(self, copy):
        for path in copy.glob("token*"):
            path.unlink()
        assert refusal(copy).startswith("does not hold a tokenizer that can be loaded: ")

    def test_damaged_weights(self, copy):
        (copy / "model.safetensors").write_bytes(b"\0" * 100)
        assert refusal(copy).startswith("does not hold a causal language model that can be loaded: ")

    def test_missing_weights(self, copy):
        config = json.loads((copy / "config.json").read_text())
        (copy / "config.json").write_text(json.dumps({**config, "num_hidden_layers": 3}))
        message = refusal(copy)
        assert message.startswith("does not fit its config.json: it lacks model.layers.2.input_layernorm.weight, ")
        assert message.endswith(" and 4 more")

    def test_weights_of_other_shapes(self, copy):
        config = json.loads((copy / "config.json").read_text())
        (copy / "config.json").write_text(json.dumps({**config, "intermediate_size": 96}))
        assert "mlp.down_proj.weight" in refusal(copy)

    def test_tokenizer_larger_than_the_embedding(self, tmp_path):
        hf.save_llama(tmp_path / "small", vocabulary=100)
        message = refusal(tmp_path / "small")
        assert message.startswith("has a tokenizer of 320 tokens, more than the model's 100 embeddings")

    def test_model_with_custom_code(self, copy):
        config = json.loads((copy / "config.json").read_text())
        custom = {**config, "model_type": "own", "auto_map": {"AutoConfig": "own.Config"}}
        (copy / "config.json").write_text(json.dumps(custom))
        (copy / "own.py").write_text("raise SystemExit('the code was run')")
        assert refusal(copy).startswith("does not hold a configuration that can be loaded: ")


def test_row_longer_than_the_context(folder):
    with pytest.raises(RefusedError, match=r"data\.max_length is 65, longer than the model's context of 64 tokens"):
        task(folder, "text", max_length=65)
