"""`trainyard run`: the spec that it makes of its options."""

import pytest
import yaml


@pytest.fixture
def dry_run(run, service, tmp_path, monkeypatch):
    """Return a function that returns the spec which a command would submit."""
    (tmp_path / "train.py").write_text("")
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
        *("--env", "WANDB_PROJECT=a=b", "--", "python", "train.py", "--lr", "3e-4"),
    )
    assert spec == {
        "version": 1,
        "name": "train",
        "task": "script",
        "argv": ["train.py", "--lr", "3e-4"],
        "resume_argv": ["--resume", "{checkpoint_dir}/a b"],
        "gpus": 8,
        "resources": {"gpus_per_node": 4, "partition": "gpu", "time_limit_minutes": 240},
        "environment": {"venv": "/opt/env", "variables": {"WANDB_PROJECT": "a=b"}},
        "restart": {"max_retries": 0, "signal": {"name": "SIGUSR1", "lead_minutes": 2.0}},
    }


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
        (("--gpus", "4", "--", "torchrun", "--nproc-per-node", "2", "train.py"), "gpus: is 4, but"),
        (("--gpus", "3", "--nodes", "2", "--", "python", "train.py"), "cannot be divided"),
        (("--resume-flag", "'a", "--", "python", "train.py"), "cannot be split into arguments"),
        (("--env", "A", "--", "python", "train.py"), "NAME=VALUE"),
        (("--", "python", "absent.py"), "there is no file 'absent.py'"),
        ((), "name a program"),
    ],
)
def test_contradictions_are_refused(dry_run, arguments, message):
    assert message in dry_run(*arguments)
