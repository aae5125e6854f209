"""`trainyard generate`: the text of transformers on stdout, errors in words, and a model that ends with the command."""

import json
import os
import signal
import subprocess
import threading

import pytest

from tests.support import hf
from tests.support.exports import make_export, spec_of, trained_module
from tests.support.terminal import on_terminal, trainyard
from tests.unit.trainyard.fake_service import job
from trainyard.cli import generate
from trainyard.cli.errors import GenerationError
from trainyard.contract.wire.generation import GenerationRequest, GenerationSettings, GenerationUpdate

CONTEXT = 64


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return hf.save_llama(tmp_path_factory.mktemp("model") / "llama", context=CONTEXT)


@pytest.fixture(scope="module")
def greedy(folder):
    """Return transformers' own text for a prompt."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model, tokenizer = AutoModelForCausalLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)

    def text(prompt, **limit):
        given = tokenizer(prompt, return_tensors="pt")
        made = model.generate(**given, do_sample=False, **limit)
        return tokenizer.decode(made[0, given["input_ids"].shape[1] :], skip_special_tokens=True)

    return text


def shell(monkeypatch, command, pids=None):
    """Run a shell's command instead of the model."""

    class Shell(subprocess.Popen):
        def __init__(self, _, **options):
            super().__init__(["/bin/sh", "-c", command], **options)
            if pids is not None:
                pids.append(self.pid)

    monkeypatch.setattr(subprocess, "Popen", Shell)


def request(folder="/x"):
    return GenerationRequest(folder=str(folder), prompt="x", settings=GenerationSettings())


@pytest.mark.heavy
def test_text_is_that_of_transformers_and_a_full_context_is_noted(run, folder, greedy):
    done = run("generate", str(folder), "def main(")
    assert done.exit_code == 0
    assert done.stdout == greedy("def main(", max_length=CONTEXT) + "\n"
    assert "the context of the model is full after" in done.stderr


@pytest.mark.heavy
def test_json_has_the_text_and_the_number_of_tokens(run, folder, greedy):
    done = run("generate", str(folder), "-", "--max-new-tokens", "9", "--json", input="a = ")
    assert (done.exit_code, done.stderr) == (0, "")
    made = json.loads(done.stdout)
    assert (made["object"], made["text"], made["new_tokens"], made["finish"]) == (
        "generation",
        greedy("a = ", max_new_tokens=9),
        9,
        "length",
    )


@pytest.mark.cpu_seconds(5)
def test_model_that_reads_no_text_is_named(run, tmp_path):
    made = make_export(tmp_path, spec_of("mlp"), trained_module(spec_of("mlp")))
    done = run("generate", str(made), "x")
    assert (done.exit_code, done.stderr) == (
        1,
        "error: this model generates no text; load it with trainyard.load\n",
    )


def test_errors_of_references(run, service, tmp_path):
    assert run("generate", "./nowhere", "x").stderr.startswith("error: there is no folder 'nowhere'")
    assert run("generate", str(tmp_path), "x", "--checkpoint", "best").exit_code == 2
    service.on("GET", "/v1/jobs/a1", job("a1", status="succeeded", spec={"task": "script"}))
    done = run("generate", "a1", "x")
    assert (done.exit_code, "of task `script` has no model" in done.stderr) == (1, True)


def test_missing_packages_are_named_before_anything_is_downloaded(run, service, monkeypatch):
    monkeypatch.setattr(generate, "find_spec", lambda name: None if name == "torch" else object())
    done = run("generate", "a1", "x")
    assert (done.exit_code, service.requests) == (2, [])
    assert "which lacks torch; install it with: pip install 'trainyard[worker,hf]'" in done.stderr


@pytest.mark.cpu_seconds(5)
def test_option_of_the_command_is_named_in_errors_of_the_model(tmp_path, folder):
    from tests.support.exports import hf_spec

    spec = hf_spec(folder, lora_rank=2)
    made = make_export(tmp_path, spec, trained_module(spec))
    note = json.loads((made / "export.json").read_text())
    note["model"]["path"] = "/nowhere"
    (made / "export.json").write_text(json.dumps(note))
    with pytest.raises(GenerationError, match=r"no folder /nowhere on this machine; name a copy .* with --base"):
        generate.run_model(request(made), print)


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("kill -9 $$", "the model was killed, probably because this machine has too little memory for it"),
        ("echo Traceback; exit 3", "the model ended with status 3; set TRAINYARD_DEBUG=1"),
    ],
)
def test_end_without_a_result_is_an_error(monkeypatch, command, message):
    shell(monkeypatch, command)
    with pytest.raises(GenerationError, match=message):
        generate.run_model(request(), print)


def test_interrupt_ends_the_model(monkeypatch):
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    pids = []
    chunk = GenerationUpdate(phase="text", text="a").model_dump_json()
    shell(monkeypatch, f"cat >/dev/null; echo '{chunk}'; exec sleep 100", pids)
    try:
        with pytest.raises(KeyboardInterrupt):
            generate.run_model(
                request(), lambda text: threading.Timer(0, os.kill, (os.getpid(), signal.SIGINT)).start()
            )
    finally:
        signal.signal(signal.SIGINT, before)
    with pytest.raises(ProcessLookupError):
        os.kill(pids[0], 0)


def test_control_characters_do_not_reach_a_terminal(tmp_path):
    script = tmp_path / "print.py"
    script.write_text("from trainyard.cli.generate import _print_chunk\n_print_chunk('a\\x1b[2Jb\\x07c\\n')\n")
    environ = {**os.environ, "PYTHONPATH": os.getcwd()}
    with on_terminal([trainyard()[0], str(script)], environ) as terminal:
        terminal.wait_for("abc")
    assert "\x1b" not in terminal.output
