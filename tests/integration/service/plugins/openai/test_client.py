"""OpenAI's own client, three versions of it, fine-tunes models here; every answer has its types."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.live_world import served
from tests.support.openai_clients import PARAMETERS, prepared_client
from tests.support.seeds import write_models_file
from tests.support.world import World

pytestmark = [pytest.mark.databases("sqlite"), pytest.mark.cpu_seconds(10)]

Run = Callable[..., Any]

CHAT = {"messages": [{"role": "user", "content": "two and two?"}, {"role": "assistant", "content": "four"}]}
PAIR = {
    "input": {"messages": [{"role": "user", "content": "two and two?"}]},
    "preferred_output": [{"role": "assistant", "content": "four"}],
    "non_preferred_output": [{"role": "assistant", "content": "five"}],
}


@pytest.fixture(scope="module", params=PARAMETERS)
def client_program(request: pytest.FixtureRequest) -> Iterator[Run]:
    with prepared_client(request.param) as run_program:
        yield run_program


@pytest.fixture
def run(world: World, tmp_path: Path, client_program: Run) -> Iterator[Run]:
    """Return a function that runs Python statements with the client, and returns what they assign to `out`."""
    for name, line in (("chat", CHAT), ("pairs", PAIR)):
        (tmp_path / f"{name}.jsonl").write_text("\n".join([json.dumps(line)] * 40))
    (tmp_path / "bad.jsonl").write_text(json.dumps(CHAT) + "\n{broken\n")
    write_models_file(world)
    with served(world) as url:

        def run_text(text: str, token: str = world.token) -> Any:
            return client_program(text, url, token, tmp_path)

        yield run_text


def test_files_are_uploaded_listed_read_and_deleted(run: Run, world: World) -> None:
    out = run("""
made = [client.files.create(file=open(f"{name}.jsonl", "rb"), purpose="fine-tune") for name in ("chat", "pairs")]
kept = [strict(FileObject, one) for one in made]
listed = [strict(FileObject, one) for one in client.files.list(limit=1)]
same = strict(FileObject, client.files.retrieve(made[0].id))
text = client.files.content(made[0].id).read() == open("chat.jsonl", "rb").read()
done = client.files.wait_for_processing(made[0].id, poll_interval=0.1).status
deleted = strict(FileDeleted, client.files.delete(made[0].id))
out = {"kept": kept, "listed": listed, "same": same, "text": text, "done": done, "deleted": deleted,
       "left": [one.id for one in client.files.list(purpose="fine-tune")],
       "other": list(client.files.list(purpose="batch"))}
""")
    chat, pairs = out["kept"]
    assert (chat["filename"], chat["purpose"], chat["status"]) == ("chat.jsonl", "fine-tune", "processed")
    assert out["listed"] == [pairs, chat], "the pages of one file each must be newest first"
    assert (out["same"], out["text"], out["done"]) == (chat, True, "processed")
    assert out["deleted"] == {"id": chat["id"], "deleted": True, "object": "file"}
    assert (out["left"], out["other"]) == ([pairs["id"]], [])
    assert world.client.get("/v1/files").json()["data"][0]["format"] == "openai_preference"


def test_errors_have_the_client_s_classes_params_and_line_numbers(run: Run, world: World) -> None:
    out = run("""
good = client.files.create(file=open("chat.jsonl", "rb"), purpose="fine-tune").id
pairs = client.files.create(file=open("pairs.jsonl", "rb"), purpose="fine-tune").id
create = client.fine_tuning.jobs.create
out = {
    "line": error_of(client.files.create, file=open("bad.jsonl", "rb"), purpose="fine-tune"),
    "purpose": error_of(client.files.create, file=open("chat.jsonl", "rb"), purpose="assistants"),
    "file": error_of(client.files.retrieve, "file-abc"),
    "job": error_of(client.fine_tuning.jobs.retrieve, "ftjob-abc"),
    "model": error_of(create, model="gpt-4o-mini", training_file=good),
    "training_file": error_of(create, model="tiny", training_file="file-abc"),
    "epochs": error_of(create, model="tiny", training_file=good, hyperparameters={"n_epochs": 0}),
    "many": error_of(create, model="tiny", training_file=good, method={"type": "supervised", "supervised": {
        "hyperparameters": {"n_epochs": 1001}}}),
    "suffix": error_of(create, model="tiny", training_file=good, suffix="my model"),
    "multiplier": error_of(create, model="tiny", training_file=good, hyperparameters={"learning_rate_multiplier": "x"}),
    "reinforcement": error_of(create, model="tiny", training_file=good, method={"type": "reinforcement"}),
    "format": error_of(create, model="tiny", training_file=good, method={"type": "dpo"}),
    "pairs": error_of(create, model="tiny", training_file=pairs),
    "validation": error_of(create, model="tiny", training_file=good, validation_file=pairs),
    "unknown": error_of(create, model="tiny", training_file=good, extra_body={"colour": "blue"}),
    "batch": error_of(create, model="tiny", training_file=good, hyperparameters={"batch_size": "many"}),
    "chat": error_of(client.chat.completions.create, model="tiny", messages=[]),
    "base": error_of(client.models.delete, "tiny"),
    "no_model": error_of(client.models.retrieve, "ft:none"),
    "events": error_of(client.fine_tuning.jobs.list_events, "ftjob-abc"),
    "wandb": error_of(create, model="tiny", training_file=good, integrations=[{"type": "wandb"}]),
    "prefix": error_of(OpenAI(base_url=str(client.base_url)[:-10], api_key="x", max_retries=0).fine_tuning.jobs.list),
    "token": error_of(OpenAI(base_url=client.base_url, api_key="sk-wrong", max_retries=0).models.list),
}
""")
    assert {name: error[0] for name, error in out.items()} == {
        **dict.fromkeys(out, "BadRequestError"),
        **dict.fromkeys(("file", "job", "chat", "no_model", "events", "prefix"), "NotFoundError"),
        "token": "AuthenticationError",
    }
    assert "line 2 is not JSON" in out["line"][3]
    assert {name: error[2] for name, error in out.items()} == {
        "line": "file",
        "purpose": "purpose",
        "file": "file_id",
        "job": "fine_tuning_job_id",
        "model": "model",
        "training_file": "training_file",
        "epochs": "hyperparameters.n_epochs",
        "many": "method.supervised.hyperparameters.n_epochs",
        "suffix": "suffix",
        "multiplier": "hyperparameters.learning_rate_multiplier",
        "reinforcement": "method.type",
        "format": "training_file",
        "pairs": "training_file",
        "validation": "validation_file",
        "unknown": "colour",
        "batch": "hyperparameters.batch_size",
        "chat": None,
        "base": "model",
        "no_model": "model",
        "events": "fine_tuning_job_id",
        "wandb": "integrations",
        "prefix": None,
        "token": None,
    }
    assert out["model"][1] == "model_not_found"
    assert "this service has: tiny" in out["model"][3]
    for name in ("epochs", "many"):
        assert "must be a whole number from 1 to 1000, or 'auto'" in out[name][3]
    assert "must be a whole number from 1 to 65536, or 'auto'" in out["batch"][3]
    assert "must be a number greater than 0, or 'auto'" in out["multiplier"][3]
    assert "contains ' '; use letters and digits" in out["suffix"][3]
    for name in ("many", "multiplier", "suffix", "training_file", "unknown", "wandb", "format"):
        assert f"{out[name][2]}: " in out[name][3], out[name]
    assert "vllm serve" in out["chat"][3]
    assert "`base_url` must end with /openai/v1" in out["prefix"][3]
    viewer = world.new_user("viewer", "vera").headers["Authorization"].removeprefix("Bearer ")
    denied = run(
        """
out = error_of(client.files.create, file=open("chat.jsonl", "rb"), purpose="fine-tune")
""",
        viewer,
    )
    assert denied[0] == "PermissionDeniedError"


def test_job_is_created_with_values_for_auto_and_is_an_ordinary_job(run: Run, world: World) -> None:
    out = run("""
upload = lambda name: client.files.create(file=open(f"{name}.jsonl", "rb"), purpose="fine-tune").id
chat, pairs = upload("chat"), upload("pairs")
jobs = client.fine_tuning.jobs
made = [
    jobs.create(model="tiny", training_file=chat, validation_file=chat, suffix="maths", seed=7,
                metadata={"team": "nlp"}, method={"type": "supervised", "supervised": {
                    "hyperparameters": {"n_epochs": 2, "batch_size": "auto"}}}),
    jobs.create(model="tiny", training_file=pairs, method={"type": "dpo", "dpo": {"hyperparameters": {"beta": 0.2}}}),
    jobs.create(model="tiny", training_file=chat, hyperparameters={"learning_rate_multiplier": 0.5, "batch_size": 4}),
]
out = {
    "made": [strict(FineTuningJob, one) for one in made],
    "listed": [strict(FineTuningJob, one)["id"] for one in jobs.list(limit=1)],
    "labelled": [one.id for one in jobs.list(metadata={"team": "nlp"})],
    "same": strict(FineTuningJob, jobs.retrieve(made[0].id)),
    "models": [strict(Model, one)["id"] for one in client.models.list()],
    "chat": chat, "pairs": pairs,
}
""")
    supervised, dpo, old = out["made"]
    assert out["listed"] == [old["id"], dpo["id"], supervised["id"]]
    assert out["labelled"] == [supervised["id"]]
    assert (out["same"], out["models"]) == (supervised, ["tiny"])
    assert (supervised["status"], supervised["fine_tuned_model"]) == ("validating_files", None)
    assert supervised["method"]["supervised"]["hyperparameters"] == {
        "n_epochs": 2,
        "batch_size": 1,
        "learning_rate_multiplier": 1.0,
    }
    assert dpo["method"]["dpo"]["hyperparameters"]["beta"] == 0.2
    assert old["hyperparameters"] == {"n_epochs": 3, "batch_size": 4, "learning_rate_multiplier": 0.5}
    spec = world.job(supervised["id"])["spec"]
    assert (spec["seed"], spec["epochs"], spec["lora_rank"], spec["metadata"]) == (7, 2, 4, {"team": "nlp"})
    assert (spec["data"]["id"], spec["data"]["eval_id"]) == (out["chat"], out["chat"])
    assert spec["optimizer"]["lr"] == 2e-4
    assert world.job(old["id"])["spec"]["optimizer"]["lr"] == 1e-4
    spec = world.job(dpo["id"])["spec"]
    assert (spec["objective"], spec["preference"]["beta"], spec["data"]["format"]) == ("dpo", 0.2, "openai_preference")
    listed = world.client.get("/v1/jobs").json()["data"]
    assert [job["name"] for job in listed] == ["tiny", "tiny", "tiny:maths"]


def test_job_runs_through_the_statuses_with_events_and_results(run: Run, world: World) -> None:
    read = """
jobs = client.fine_tuning.jobs
job = jobs.retrieve(job_id)
out = {
    "job": strict(FineTuningJob, job),
    "events": [strict(FineTuningJobEvent, one) for one in jobs.list_events(job.id, limit=2)],
    "checkpoints": [strict(FineTuningJobCheckpoint, one) for one in jobs.checkpoints.list(job.id, limit=1)],
    "models": [strict(Model, one)["id"] for one in client.models.list()],
    "results": [client.files.content(one).text for one in job.result_files],
    "files": [strict(FileObject, client.files.retrieve(one)) for one in job.result_files],
}
"""
    job_id = run("""
file = client.files.create(file=open("chat.jsonl", "rb"), purpose="fine-tune").id
job = client.fine_tuning.jobs.create(model="tiny", training_file=file, validation_file=file)
out = job.id
""")
    assert run(f"job_id = {job_id!r}\n{read}")["job"]["status"] == "validating_files"
    world.tick()
    assert run(f"job_id = {job_id!r}\n{read}")["job"]["status"] == "queued"
    worker = world.worker(job_id)
    worker.execution = worker.claim().json()["execution"]
    for step in range(1, 6):
        worker.metrics([("train/loss", step, 1.0 / step), ("train/mean_token_accuracy", step, step / 8)])
    worker.metrics([("eval/loss", 5, 0.5), ("eval/mean_token_accuracy", 5, 0.75), ("train/tokens", 5, 640.0)])
    worker.checkpoint(5, metrics={"eval/loss": 0.5, "train/mean_token_accuracy": 0.625})
    running = run(f"job_id = {job_id!r}\n{read}")
    assert (running["job"]["status"], running["job"]["finished_at"], running["results"]) == ("running", None, [])
    metrics = [one["data"] for one in running["events"] if one["type"] == "metrics"]
    evaluated, *trained = metrics
    names = ("valid_loss", "valid_mean_token_accuracy", "full_valid_loss", "full_valid_mean_token_accuracy")
    assert {"step": 5, **dict(zip(names, (0.5, 0.75) * 2, strict=True))}.items() <= evaluated.items()
    assert "train_loss" not in evaluated
    assert [(one["step"], one["train_loss"], one["train_mean_token_accuracy"]) for one in trained] == [
        (step, 1.0 / step, step / 8) for step in (5, 4, 3, 2, 1)
    ]
    assert all(name not in one for name in names for one in trained)
    ids = [one["id"] for one in running["events"]]
    assert len(ids) == len(set(ids)), "an event is on two pages"
    worker.end("completed")
    world.tick()
    done = run(f"job_id = {job_id!r}\n{read}")
    assert done["job"]["status"] == "succeeded"
    assert done["job"]["trained_tokens"] == 640
    model = done["job"]["fine_tuned_model"]
    assert model.startswith("ft:tiny:admin::")
    assert done["models"] == ["tiny", model]
    assert [one["fine_tuned_model_checkpoint"] for one in done["checkpoints"]] == [f"{model}:ckpt-step-5"]
    metrics = {name: value for name, value in done["checkpoints"][0]["metrics"].items() if value is not None}
    assert metrics == {"step": 5, "train_mean_token_accuracy": 0.625, "valid_loss": 0.5, "full_valid_loss": 0.5}
    (text,), (file,) = done["results"], done["files"]
    assert text.splitlines()[0] == "step,train_loss,train_accuracy,valid_loss,valid_mean_token_accuracy"
    assert text.splitlines()[-2:] == ["4,0.25,0.5,,", "5,0.2,0.625,0.5,0.75"]
    assert (file["bytes"], file["purpose"]) == (len(text), "fine-tune-results")
    assert [one["id"] for one in done["events"]][-len(ids) :] == ids, "events that were read must not change"
    gone = run(f"""
deleted = strict(ModelDeleted, client.models.delete({model!r}))
out = [deleted["deleted"], error_of(client.models.retrieve, {model!r})[0],
       client.fine_tuning.jobs.retrieve({job_id!r}).status]
""")
    assert gone == [True, "NotFoundError", "succeeded"]
    refused = run(f"""
out = [error_of(client.files.delete, {file["id"]!r}), error_of(client.files.delete, "file_results_none"),
       error_of(client.fine_tuning.jobs.cancel, {job_id!r})]
""")
    assert refused[0][:3] == ["BadRequestError", "results_of_job", "file_id"]
    assert f"the results of job {job_id} and cannot be deleted alone" in refused[0][3]
    assert refused[1][0] == "NotFoundError"
    assert refused[2][:2] == ["BadRequestError", "job_finished"]


def test_job_is_paused_resumed_and_cancelled(run: Run, world: World) -> None:
    job_id = run("""
file = client.files.create(file=open("chat.jsonl", "rb"), purpose="fine-tune").id
job = client.fine_tuning.jobs.create(model="tiny", training_file=file)
paused = client.fine_tuning.jobs.pause(job.id)
strict(FineTuningJob, paused)
assert paused.status == "paused", paused
out = job.id
""")
    world.tick()
    assert world.status(job_id) == "paused"
    statuses = run(f"""
jobs = client.fine_tuning.jobs
out = [jobs.resume({job_id!r}).status, strict(FineTuningJob, jobs.cancel({job_id!r}))["id"]]
""")
    assert statuses == ["validating_files", job_id]
    world.tick()
    after = run(f"""
jobs = client.fine_tuning.jobs
out = [strict(FineTuningJob, jobs.retrieve({job_id!r}))]
out += [error_of(change, {job_id!r})[:2] for change in (jobs.pause, jobs.cancel)]
""")
    assert after[0]["status"] == "cancelled"
    assert after[0]["finished_at"] is not None
    assert after[1] == after[2] == ["BadRequestError", "job_finished"]


def test_repeated_request_with_a_key_makes_one_job(run: Run, world: World) -> None:
    ids = run("""
file = client.files.create(file=open("chat.jsonl", "rb"), purpose="fine-tune").id
create = lambda: client.fine_tuning.jobs.create(
    model="tiny", training_file=file, extra_headers={"Idempotency-Key": "monday"}).id
out = [create(), create()]
""")
    assert ids[0] == ids[1]
    assert len(world.client.get("/v1/jobs").json()["data"]) == 1


def test_job_continues_from_a_fine_tuned_model_and_from_its_checkpoints(run: Run, world: World) -> None:
    first = run("""
upload = lambda name: client.files.create(file=open(f"{name}.jsonl", "rb"), purpose="fine-tune").id
out = client.fine_tuning.jobs.create(model="tiny", training_file=upload("chat"), suffix="one").id
""")
    world.tick()
    worker = world.worker(first)
    worker.execution = worker.claim().json()["execution"]
    for step in (4, 8):
        folder = world.app_state.run_layout(first).checkpoint(step).root
        folder.mkdir(parents=True)
        for name in ("weights", "manifest.json"):
            (folder / name).write_text("{}")
        worker.checkpoint(step)
    assert run(f"""
name = "ft:tiny:admin:one:{first[-12:]}"
file = client.files.create(file=open("chat.jsonl", "rb"), purpose="fine-tune").id
out = error_of(client.fine_tuning.jobs.create, model=name, training_file=file)[1:3]
""") == ["model_not_found", "model"], "a job that has not ended has no model"
    worker.end("completed")
    world.tick()
    made_by = world.job(first)["spec"]
    write_models_file(world, lora_rank=16)
    base = Path(made_by["model"]["path"])
    base.rename(base.with_name("moved"))
    moved = run(f"""
file = client.files.create(file=open("chat.jsonl", "rb"), purpose="fine-tune").id
out = error_of(client.fine_tuning.jobs.create, model="ft:tiny:admin:one:{first[-12:]}", training_file=file)
""")
    assert moved[1:3] == ["model_configuration", "model"]
    assert f"the base model of job {first}, which made this one, is not usable" in moved[3]
    assert f"{base} does not exist" in moved[3]
    base.with_name("moved").rename(base)
    out = run(f"""
name = client.fine_tuning.jobs.retrieve({first!r}).fine_tuned_model
upload = lambda name: client.files.create(file=open(f"{{name}}.jsonl", "rb"), purpose="fine-tune").id
chat, pairs = upload("chat"), upload("pairs")
create = client.fine_tuning.jobs.create
made = [
    create(model=name, training_file=chat, suffix="two", seed=9),
    create(model=name + ":ckpt-step-4", training_file=chat),
    create(model=name, training_file=pairs, method={{"type": "dpo"}}),
]
out = {{
    "name": name, "made": [strict(FineTuningJob, one) for one in made],
    "missing": error_of(create, model=name + ":ckpt-step-5", training_file=chat),
    "no_step": error_of(create, model=name + ":ckpt-step-x", training_file=chat),
    "unknown": error_of(create, model="ft:tiny:admin::nothing", training_file=chat),
    "checkpoint": strict(Model, client.models.retrieve(name + ":ckpt-step-4"))["id"],
    "no_checkpoint": error_of(client.models.retrieve, name + ":ckpt-step-5"),
    "delete": error_of(client.models.delete, name + ":ckpt-step-4"),
}}
client.models.delete(name)
out["deleted"] = error_of(create, model=name, training_file=chat)
""")
    names = [out["name"], f"{out['name']}:ckpt-step-4", out["name"]]
    assert out["checkpoint"] == names[1]
    assert out["no_checkpoint"][:2] == ["NotFoundError", "model_not_found"]
    assert "deleted together with its model" in out["delete"][3]
    assert [job["model"] for job in out["made"]] == names
    specs = [world.job(job["id"])["spec"] for job in out["made"]]
    assert [(spec["resume_from"], spec["resume"]) for spec in specs] == [
        (f"{first}:{step}", "weights") for step in (8, 4, 8)
    ]
    assert (specs[0]["seed"], [spec["objective"] for spec in specs]) == (9, ["sft", "sft", "dpo"])
    for name in ("model", "lora_rank", "lora"):
        assert [spec[name] for spec in specs] == [made_by[name]] * 3, "of the weights, not of the changed models.yaml"
    for case in ("missing", "no_step", "unknown", "deleted"):
        assert out[case][:3] == ["BadRequestError", "model_not_found", "model"], case
    assert "those of the steps 4, 8" in out["missing"][3]
    assert all(world.job(job["id"])["origin"]["job_id"] == first for job in out["made"])
    second = out["made"][0]["id"]
    world.tick()
    worker = world.worker(second)
    worker.execution = worker.claim().json()["execution"]
    worker.end("completed")
    world.tick()
    model = run(f"out = client.fine_tuning.jobs.retrieve({second!r}).fine_tuned_model")
    assert model == f"ft:tiny:admin:two:{second[-12:]}", "the name has the base model, not the chain of models"
