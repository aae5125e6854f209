"""From files to text: the commands of docs/finetuning.md, and models of real runs that compute what was evaluated."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import trainyard
from tests.support import hf
from tests.support.terminal import run_trainyard
from trainyard.client import Client
from trainyard.contract.local_paths import admin_token_file
from trainyard.contract.wire.generation import GenerationSettings
from trainyard.demo import ServiceProcess
from trainyard.loading.generation import generate_text
from trainyard.loading.load import load_folder
from worker.data.builtin import load_digits

pytestmark = [pytest.mark.heavy, pytest.mark.e2e, pytest.mark.timeout(600)]

PAGE = Path(__file__).parents[2] / "docs" / "finetuning.md"
COMMANDS = re.findall(r"^(\d+)\\\. .*?```bash\n(.*?)```", PAGE.read_text(), re.DOTALL | re.MULTILINE)


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServiceProcess]:
    folder = tmp_path_factory.mktemp("service")
    process = ServiceProcess(folder, local_slots="2", tick_seconds="0.3", allowed_roots=str(folder))
    process.start()
    yield process
    process.stop()


@pytest.fixture(scope="module")
def client(service: ServiceProcess) -> Iterator[Client]:
    with service.client() as made:
        yield made


@pytest.fixture(scope="module")
def environ(service: ServiceProcess, client: Client) -> dict[str, str]:
    """Return the variables of a user, with an empty cache."""
    folder = service.state_dir.parent
    return {
        **os.environ,
        "TRAINYARD_URL": service.url,
        "TRAINYARD_TOKEN": admin_token_file(service.state_dir).read_text().strip(),
        "TRAINYARD_CACHE_DIR": str(folder / "cache"),
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "TERM": "dumb",
    }


@pytest.fixture(autouse=True)
def own_cache(environ: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRAINYARD_CACHE_DIR", environ["TRAINYARD_CACHE_DIR"])


def trained(client: Client, spec: Any, **changes: Any) -> Any:
    job = client.submit({**client.template(spec).spec, **changes} if isinstance(spec, str) else spec)
    assert job.wait(300).status == "succeeded", job.resource.status_message
    return job


def test_ten_commands_lead_from_a_file_to_text(
    service: ServiceProcess, environ: dict[str, str], tmp_path: Path
) -> None:
    assert [int(number) for number, _ in COMMANDS] == list(range(1, 11))
    shared = service.state_dir.parent / "shared"
    shared.mkdir()
    environ = environ | {"BASE": str(hf.save_llama(shared / "llama", context=128))}
    hf.write_lines(tmp_path / "chats.jsonl", hf.chats(24))
    hf.write_lines(tmp_path / "held_out.jsonl", hf.chats(4))
    outputs = []
    for number, command in COMMANDS:
        done = subprocess.run(
            ["bash", "-e", "-c", command], cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=300
        )
        assert done.returncode == 0, (number, done.stdout, done.stderr)
        outputs.append(done.stdout)
    assert outputs[5].strip()
    assert outputs[7] == "adder@1\n"
    assert outputs[9].strip() == outputs[5][: len(outputs[9].strip())]
    assert "train/loss" in (tmp_path / "adder.csv").read_text()
    assert json.loads((tmp_path / "adder" / "config.json").read_text())["architectures"] == ["LlamaForCausalLM"]
    card = (tmp_path / "adder" / "README.md").read_text()
    assert 'license: "apache-2.0"' in card
    assert "`eval/loss`" in card


@pytest.fixture(scope="module")
def digits(client: Client) -> Any:
    return trained(client, "digits_ddp", epochs=6, gpus=1, strategy="single", name="digits")


def test_digits_have_the_accuracy_of_the_evaluation(client: Client, digits: Any) -> None:
    job = digits
    evaluated = job.refresh().metrics["eval/accuracy"]
    model, transform = trainyard.load(job.id, client=client)
    scaled, labels, train = load_digits(0.2)
    raw = (scaled[train:] * 16).round().to(torch.uint8).reshape(-1, 64).numpy()
    with torch.no_grad():
        accuracy = (model(transform(raw)).argmax(dim=1) == labels[train:]).double().mean().item()
    assert accuracy == pytest.approx(evaluated, abs=1e-9)
    assert accuracy > 0.8


def test_text_of_a_trained_gpt_is_that_of_transformers(client: Client, environ: dict[str, str], service: Any) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = {"source": "builtin", "name": "gpt", "layers": 1, "width": 32, "heads": 2, "context": 48}
    changes = {"steps": 30, "model": model, "evaluation": {}, "schedule": {}, "gpus": 1, "strategy": "single"}
    job = trained(client, "gpt_stdlib", **changes)
    folder = service.runs_dir / job.id / "export"
    tokenizer, loaded = AutoTokenizer.from_pretrained(folder), AutoModelForCausalLM.from_pretrained(folder)
    given = tokenizer("def main(", return_tensors="pt")
    tokens = loaded.generate(**given, do_sample=False, max_new_tokens=20)[0, given["input_ids"].shape[1] :]
    expected = tokenizer.decode(tokens).removesuffix("\0")
    settings = GenerationSettings(max_new_tokens=20)
    own = generate_text(*load_folder(folder, base=None, device="cpu"), "def main(", settings, lambda _chunk: None)
    assert own.text == expected
    options = ("--checkpoint", "latest", "--max-new-tokens", "20", "--json")
    done = run_trainyard(environ, "generate", job.id, "def main(", *options)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["text"] == expected


def test_alias_loads_its_version_until_the_files_change(client: Client, service: ServiceProcess, digits: Any) -> None:
    job = digits
    client.register_model("a-model", job.id, aliases=["prod"])
    by_job = trainyard.load("digits", client=client).model.state_dict()
    for source in ("a-model", "a-model@prod", "a-model@1", "a-model@latest"):
        state = trainyard.load(source, client=client).model.state_dict()
        assert all(torch.equal(state[name], value) for name, value in by_job.items())
    with pytest.raises(trainyard.LoadError, match="has no version '2'; it has 1, prod"):
        trainyard.load("a-model@2", client=client)
    note = service.runs_dir / job.id / "export" / "export.json"
    note.write_bytes(note.read_bytes() + b" ")
    with pytest.raises(trainyard.LoadError, match="is not the registered one: it was changed since"):
        trainyard.load("a-model@prod", client=client)
