"""`trainyard run`: the spec that it makes of its options."""

import json
import subprocess

import pytest
import yaml

from tests.unit.trainyard.fake_service import TIME, error, job, log


@pytest.fixture
def dry_run(run, service, tmp_path, monkeypatch):
    """Return a function that returns the spec which a command would submit."""
    for name in ("train.py", "train.sh", "x"):
        (tmp_path / name).write_text("")
    (tmp_path / "x").chmod(0o755)
    monkeypatch.chdir(tmp_path)

    def parsed(*arguments):
        done = run("run", "--dry-run", *arguments)
        assert service.requests == []
        return yaml.safe_load(done.stdout) if done.exit_code == 0 else done.stderr

    return parsed


def test_options_become_fields(dry_run):
    spec = dry_run(
        *("--gpus", "8", "--nodes", "2", "--partition", "gpu", "--time", "4h", "--venv", "/opt/env", "--retries", "0"),
        *("--signal", "USR1@2m", "--resume-flag", "--resume '{checkpoint_dir}/a b'"),
        *("--keep", "./out/", "--keep", "state.pt"),
        *("--secret", "HF_TOKEN", "--env", "WANDB_PROJECT=a=b", "--", "python", "train.py", "--lr", "3e-4"),
    )
    assert spec == {
        "version": 1,
        "name": "train",
        "task": "script",
        "argv": ["train.py", "--lr", "3e-4"],
        "resume_argv": ["--resume", "{checkpoint_dir}/a b"],
        "keep": ["./out/", "state.pt"],
        "gpus": 8,
        "resources": {"gpus_per_node": 4, "partition": "gpu", "time_limit_minutes": 240},
        "environment": {"venv": "/opt/env", "variables": {"WANDB_PROJECT": "a=b"}, "secrets": ["HF_TOKEN"]},
        "restart": {"max_retries": 0, "signal": {"name": "SIGUSR1", "lead_minutes": 2.0}},
    }


@pytest.mark.parametrize(
    ("arguments", "argv", "launch"),
    [
        (("bash", "train.sh"), ["bash", "train.sh"], {"mode": "exec", "per": "job"}),
        (("--per", "rank", "--", "make"), ["make"], {"mode": "exec"}),
        (("--per", "node", "--", "python", "train.py"), ["train.py"], {"per": "node", "distributed": False}),
        (("torchrun", "train.py"), ["train.py"], None),
        (("python", "train.py"), ["train.py"], {"distributed": False}),
        (("--gpus", "2", "--", "python", "train.py"), ["train.py"], None),
        (("torchrun", "--no-python", "./x"), ["./x"], {"mode": "exec", "distributed": True}),
        (("uv", "run", "train.py"), ["uv", "run", "train.py"], {"mode": "exec"}),
    ],
)
def test_start_of_a_command_is_in_the_spec(dry_run, arguments, argv, launch):
    spec = dry_run(*arguments)
    assert (spec["argv"], spec.get("launch")) == (argv, launch)
    assert spec["name"] == {"make": "make", "./x": "x"}.get(argv[0], "train")


@pytest.mark.parametrize(
    ("command", "name"),
    [
        ("low=1 python -m pkg.train", "pkg.train"),
        ("uv run -m pkg.train", "pkg.train"),
        ("nohup ./x", "x"),
        ("python -X dev train.py a.sh", "train"),
        ("low=1 make", "make"),
    ],
)
def test_name_is_that_of_the_program_behind_a_wrapper(dry_run, command, name):
    assert dry_run(*command.split())["name"] == name


def test_dry_run_prints_json(dry_run, run):
    done = run("run", "--dry-run", "--json", "--", "python", "train.py")
    assert json.loads(done.stdout) == dry_run("--", "python", "train.py")


def test_an_error_in_an_option_is_json(run):
    done = run("run", "--json", "--env", "A", "--", "python", "train.py")
    assert "NAME=VALUE" in json.loads(done.stderr)["error"]["message"]


def test_defaults_are_absent(dry_run):
    assert dry_run("--", "torchrun", "--nproc-per-node", "2", "train.py") == {
        "version": 1,
        "name": "train",
        "task": "script",
        "argv": ["train.py"],
        "gpus": 2,
    }


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--gpus", "4", "--", "torchrun", "--nproc-per-node", "2", "train.py"), "--gpus: is 4, but"),
        (("--gpus", "3", "--nodes", "2", "--", "python", "train.py"), "cannot be divided"),
        (("--resume-flag", "'a", "--", "python", "train.py"), "cannot be split into arguments"),
        (("--env", "A", "--", "python", "train.py"), "NAME=VALUE"),
        (("--code", "absent", "--", "python", "train.py"), "there is no folder"),
        (("--", "python", "absent.py"), "error: there is no file 'absent.py'"),
        (("--", "python", "../train.py"), "is outside of the uploaded folder"),
        (("--include", "data", "--", "python", "train.py"), "'data' does not exist in the folder"),
        (("--include", "/etc/hosts", "--", "python", "train.py"), "'/etc/hosts' is outside of the folder"),
        (("--", "torchrun", "--nproc-per-node", "gpu", "train.py"), "gpus: is required: the launcher"),
        (("--nodes", "2", "--gpus", "2", "--", "bash", "-c", "x"), "--nodes: is 2, but the command is started once"),
        (("--", "bash", "absent.sh"), "there is no file 'absent.sh'"),
        (("--", "train.sh"), "as which its name is ./train.sh"),
        (("--", "./train.sh"), "'./train.sh' is not executable; use chmod +x"),
        (("--", "python", "train.py", "a\udcff"), r"the word 'a\udcff' is not UTF-8; write the command to a file"),
        (("--", "python", "train.py", *["a"] * 300), "the command has 302 words, and at most 256 are possible; write"),
        (("--", "bash", "-c", "a" * 5000), "aaa...' has 5,000 characters, and at most 4096 are possible; write"),
        ((), "name a program"),
        (("--", ""), "name a program"),
    ],
)
def test_contradictions_are_refused(dry_run, arguments, message):
    assert message in dry_run(*arguments)


@pytest.mark.parametrize("separator", [(), ("--",)])
def test_options_after_the_program_belong_to_it(dry_run, separator):
    spec = dry_run("--time", "90m", *separator, "python", "train.py", "--lr", "1", "--json", "--", "--name", "x")
    assert spec["argv"] == ["train.py", "--lr", "1", "--json", "--", "--name", "x"]
    assert (spec["name"], spec["resources"]) == ("train", {"time_limit_minutes": 90})
    assert "there is no file" in dry_run(*separator, "python", "absent.py", "--json")


def test_a_path_inside_of_the_folder_is_made_relative(dry_run, tmp_path):
    assert dry_run("python", f"{tmp_path}/sub/../train.py")["argv"] == ["train.py"]


def test_a_program_starts_in_the_current_folder_of_its_repository(dry_run, tmp_path, monkeypatch):
    for arguments in (("init", "-q"), ("add", ".")):
        subprocess.run(["git", "-C", str(tmp_path), *arguments], check=True)
    (tmp_path / "exp" / "runs").mkdir(parents=True)
    (tmp_path / "exp" / "own.py").write_text("")
    monkeypatch.setenv("HOME", "/home/ada")
    monkeypatch.chdir(tmp_path / "exp")
    for given, argv in (("own.py", "own.py"), ("../train.py", "../train.py"), (f"{tmp_path}/train.py", "../train.py")):
        spec = dry_run("--keep", "out", "python", given)
        assert (spec["argv"], spec["launch"]["folder"], spec["keep"]) == ([argv], "exp", ["out"])
    assert dry_run(f"PYTHONPATH={tmp_path}:..", "../x")["environment"] == {"variables": {"PYTHONPATH": "..:.."}}
    assert "folder" not in dry_run("--code", ".", "python", "own.py")["launch"]
    assert "there is no file 'train.py' in" in dry_run("python", "train.py")
    assert "is outside of the uploaded folder" in dry_run("python", "../../train.py")
    (tmp_path / "linked").symlink_to("/usr")
    assert "leads out of the folder" in (error := dry_run("python", "own.py"))
    assert ". `--code .` uploads the current folder alone" in error
    (tmp_path / "linked").unlink()
    with (tmp_path / "data.bin").open("wb") as file:
        file.truncate(60_000_000)
    assert ". `--code .` uploads the current folder alone" in dry_run("python", "own.py")


def test_uploaded_folders_of_a_search_path_are_made_relative(dry_run, tmp_path):
    for name in ("src/lib.py", ".venv/pyvenv.cfg", ".venv/lib/x.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("")
    value = f"{tmp_path}/src:{tmp_path}:{tmp_path}/.venv/lib:/opt/lib:"
    for command in (
        ("--env", f"PYTHONPATH={value}", "python", "train.py"),
        (f"PYTHONPATH={value}", "python", "train.py"),
    ):
        assert dry_run(*command)["environment"]["variables"] == {"PYTHONPATH": f"src:.:{tmp_path}/.venv/lib:/opt/lib:"}
    assert "RANK is set by the launcher" in dry_run("--env", "RANK=0", "python", "train.py")


@pytest.mark.parametrize("path", ["/opt/train.py", "/opt/sub/../train.py"])
def test_an_absolute_path_elsewhere_is_retained_and_stated(run, path):
    done = run("run", "--dry-run", "python", path)
    assert yaml.safe_load(done.stdout)["argv"] == ["/opt/train.py"]
    assert done.stderr == (
        "note: /opt/train.py is outside of the uploaded folder: it must exist at this path on the nodes\n"
    )


def test_dry_run_checks_the_size_of_the_folder(dry_run, tmp_path):
    with (tmp_path / "data.bin").open("wb") as file:
        file.truncate(60_000_000)
    message = dry_run("python", "train.py")
    assert "holds 57.2 MiB in 4 files, and an upload takes at most 50 MiB" in message
    assert message.endswith("Largest files: data.bin (57.2 MiB)\n")


def test_active_environment_is_stated_and_declined(run, dry_run, tmp_path, monkeypatch):
    (tmp_path / "env" / "bin").mkdir(parents=True)
    (tmp_path / "env" / "bin" / "python").touch()
    monkeypatch.setenv("VIRTUAL_ENV", f"{tmp_path}/env")
    done = run("run", "--dry-run", "python", "train.py")
    assert yaml.safe_load(done.stdout)["environment"] == {"venv": f"{tmp_path}/env"}
    assert "note: the program runs in the active environment" in done.stderr
    assert "environment" not in dry_run("--no-venv", "python", "train.py")


def test_settings_of_accelerate_that_are_not_read_are_stated(run, dry_run, tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    assert "note" not in run("run", "--dry-run", "accelerate", "launch", "train.py").stderr
    config = tmp_path / "hf" / "accelerate" / "default_config.yaml"
    config.parent.mkdir(parents=True)
    config.write_text("mixed_precision: bf16\n")
    done = run("run", "--dry-run", "accelerate", "launch", "train.py")
    assert f"note: {config} is not read: pass its settings as options" in done.stderr
    assert "note" not in run("run", "--dry-run", "python", "train.py").stderr


def test_problems_of_the_service_are_named_by_options(run, service, tmp_path, monkeypatch):
    (tmp_path / "train.py").write_text("")
    monkeypatch.setattr("trainyard.client.Client.upload", lambda _client, archive: archive.digest)
    problems = {
        "keep.1": "--keep ../b: no",
        "argv": "error: no",
        "environment.variables.LD_X": "--env LD_X: no",
        "environment.secrets.0": "--secret HF_TOKEN: no",
        "resources.time_limit_minutes": "--time: no",
        "resume_argv.3": "--resume-flag: no",
        "gpus": "--gpus: no",
        "resources": "--partition: no",
        "backend": "backend: no",
    }
    listed = [{"param": param, "message": "no"} for param in problems]
    listed.append({"param": "", "message": "only `resources.time_limit_minutes` and `backend`"})
    service.on("POST", "/v1/jobs", error(422, "no", problems=listed))
    options = ("--keep", "a", "--keep", "../b", "--secret", "HF_TOKEN", "--partition", "gpu")
    done = run("run", *options, "python", "train.py")
    assert (done.exit_code, done.stderr.splitlines()[:-1]) == (2, list(problems.values()))
    assert done.stderr.endswith("\nerror: only `--time` and `backend`\n")
    answer = json.loads(run("run", "--json", *options, "python", "train.py").stderr)
    assert [one["param"] for one in answer["problems"]] == [*problems, ""]


def test_a_missing_file_that_was_not_uploaded_is_explained(run, service, tmp_path, monkeypatch):
    subprocess.run(["git", "-C", str(tmp_path), "init", "-q"], check=True)
    (tmp_path / ".gitignore").write_text("data\n")
    (tmp_path / "train.py").write_text("")
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "train.csv").write_text("1")
    failure = {"type": "FileNotFoundError", "message": "[Errno 2] No such file or directory: 'data/train.csv'"}
    failed = job("a1", status="failed", status_message="failed", error={**failure, "exit_code": 1})
    monkeypatch.setattr("trainyard.client.Client.upload", lambda _client, archive: archive.digest)
    service.on("POST", "/v1/jobs", job("a1")).on("GET", "/v1/jobs/a1", failed)
    service.on("GET", "/v1/jobs/a1/logs", log(b"", 0)).on("GET", "/v1/jobs/a1/metrics", {"job_id": "a1", "series": []})
    done = run("run", "python", "train.py")
    assert "note: not uploaded, as git ignores them: data/; upload one with --include PATH\n" in done.stderr
    assert "hint: 'data/train.csv' exists in" in done.stderr
    assert "upload it with --include data/train.csv" in done.stderr
    assert done.exit_code == 1


def test_curves_that_are_not_drawn_are_counted_and_named_by_the_job(run, service, tmp_path, monkeypatch):
    (tmp_path / "train.py").write_text("")
    curves = [{"key": f"m{index}", "steps": [0], "values": [1.0], "times": [TIME]} for index in range(10)]
    metrics = {"job_id": "a1", "series": curves, "series_omitted": 90}
    monkeypatch.setattr("trainyard.client.Client.upload", lambda _client, archive: archive.digest)
    service.on("POST", "/v1/jobs", job("a1")).on("GET", "/v1/jobs/a1", job("a1", status="succeeded"))
    service.on("GET", "/v1/jobs/a1/logs", log(b"", 0)).on("GET", "/v1/jobs/a1/metrics", metrics)
    assert "\n92 more curves: trainyard metrics a1\n" in run("run", "python", "train.py").stderr


def test_messages_of_the_node_are_named_by_options(run, service, tmp_path, monkeypatch):
    (tmp_path / "train.py").write_text("")
    monkeypatch.setattr("trainyard.client.Client.upload", lambda _client, archive: archive.digest)
    messages = {
        "environment.venv: no /x/bin/python on n1": "--venv: no /x/bin/python on n1",
        "environment.container.image: /x is not a folder": "--container: /x is not a folder",
        "environment.modules: `module load x` failed": "environment.modules: `module load x` failed",
    }
    service.on("POST", "/v1/jobs", job("a1"))
    service.on("GET", "/v1/jobs/a1/logs", log(b"", 0)).on("GET", "/v1/jobs/a1/metrics", {"job_id": "a1", "series": []})
    for message, shown in messages.items():
        failure = {"type": "EnvironmentRejected", "message": message}
        service.on("GET", "/v1/jobs/a1", job("a1", status="failed", status_message=message, error=failure))
        assert f"failed: {shown}\n" in run("run", "python", "train.py").stderr
        of_program = failure | {"rank": 0}
        service.on("GET", "/v1/jobs/a1", job("a1", status="failed", status_message=message, error=of_program))
        assert f"failed: {message}\n" in run("run", "python", "train.py").stderr, "the program's own message"
