"""Settings derived from others: the interpreter of the nodes, and the database password from a file."""

import sys
from pathlib import Path

import pytest
import sqlalchemy as sa
from pydantic import ValidationError
from structlog.testing import capture_logs

from service.core.errors import ServiceError
from service.core.settings import Settings, has_gpu, unknown_variables
from service.main import main
from service.plugins.planner.service import preview_script
from trainyard.contract.spec.resolve import resolve
from trainyard.contract.spec.sbatch_options import DEFAULT_OPTIONS
from trainyard.contract.spec.site import Site
from trainyard.contract.spec.templates import fill_template
from trainyard.contract.spec.training_spec import parse_spec


def private(path: Path, text: str) -> Path:
    path.write_text(text)
    path.chmod(0o600)
    return path


@pytest.mark.parametrize(("name", "value"), [("CODE_ROLES", "admin,viewer"), ("PORT", "x"), ("DATABASE_URL", "x:")])
def test_error_names_the_environment_variable(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], name: str, value: str
) -> None:
    monkeypatch.setenv(f"TRAINYARD_{name}", value)
    assert main(["doctor"]) == 2
    assert capsys.readouterr().err.startswith(f"TRAINYARD_{name}: ")


def test_batch_script_uses_slurm_python(tmp_path: Path) -> None:
    settings = Settings(backend="slurm", slurm_python=Path("/nodes/bin/python"), state_dir=tmp_path, accelerator="cpu")
    spec = resolve(parse_spec(fill_template("mlp_parity", {})), settings.site)
    script, _ = preview_script(settings, spec, Site(accelerator="cpu"))
    assert script is not None
    assert " /nodes/bin/python -u -m submitit.core._submit " in script


def test_default_interpreter_is_that_of_the_service() -> None:
    assert Settings(slurm_python=Path("/nodes/bin/python")).python == sys.executable
    assert Settings(backend="slurm").python == sys.executable


@pytest.mark.parametrize(
    ("host", "url"),
    [
        ("0.0.0.0", "http://127.0.0.1:9000"),
        ("::", "http://[::1]:9000"),
        ("10.0.0.5", "http://10.0.0.5:9000"),
        ("fd00::5", "http://[fd00::5]:9000"),
    ],
)
def test_clients_on_the_same_machine_use_the_listening_address(host: str, url: str) -> None:
    settings = Settings(host=host, port=9000, public_url="https://yard.example/")
    assert (settings.local_url, settings.service_url) == (url, "https://yard.example")


@pytest.mark.parametrize(
    ("url", "base"),
    [
        ("", ""),
        ("https://yard.example/", ""),
        ("https://yard.example:8443/node/login1.example/8470/", "/node/login1.example/8470"),
    ],
)
def test_base_path_is_the_path_of_the_public_url(url: str, base: str) -> None:
    settings = Settings(public_url=url)
    assert settings.base_path == base
    assert settings.service_url == (url.rstrip("/") or settings.local_url)
    assert settings.url_for_workers == settings.service_url
    assert Settings(public_url=url, worker_url="http://login1:8470/").url_for_workers == "http://login1:8470"


@pytest.mark.parametrize("name", ["public_url", "worker_url"])
@pytest.mark.parametrize(
    "url",
    [
        *("yard.example/a", "ftp://yard.example", "https://", "https://ada@yard.example", "https://yard.example:99999"),
        *(
            "https://yard.example/a?b",
            "https://yard.example/a#b",
            "https://yard.example/a//b",
            "https://yard.example/../a",
        ),
        *("https://yard.example/a;b", "https://yard.example/a%20b", 'https://yard.example/"a', "https://[yard"),
    ],
)
def test_url_of_the_service_has_a_host_and_a_plain_path(name: str, url: str) -> None:
    with pytest.raises(ValueError, match=r"is not a URL|has a segment that"):
        Settings(**{name: url})


def test_password_file_is_read_verbatim(tmp_path: Path) -> None:
    secret = private(tmp_path / "password", "odd/@:p%w\n")
    settings = Settings(database_url="postgres://ada@host/yard", database_password_file=secret)
    url = sa.make_url(settings.url)
    assert (url.username, url.password, url.host, url.database) == ("ada", "odd/@:p%w", "host", "yard")


def test_invalid_password_file_is_rejected(tmp_path: Path) -> None:
    def url_with(path: Path) -> str:
        return Settings(database_url="postgres://ada@host/yard", database_password_file=path).url

    shared = private(tmp_path / "shared", "x")
    shared.chmod(0o644)
    with pytest.raises(ServiceError, match="readable by others: chmod 600"):
        url_with(shared)
    with pytest.raises(ServiceError, match="is empty"):
        url_with(private(tmp_path / "empty", "\n"))
    with pytest.raises(ServiceError, match="No such file"):
        url_with(tmp_path / "absent")


def test_variables_that_are_no_settings_are_reported() -> None:
    names = ["TRAINYARD_MAX_GPUS_PER_USR", "TRAINYARD_MAX_GPUS_PER_USER", "TRAINYARD_PORTS", "TRAINYARD_URL", "PATH"]
    misspelled = ("TRAINYARD_MAX_GPUS_PER_USR", "TRAINYARD_MAX_GPUS_PER_USER")
    assert list(unknown_variables(names)) == [misspelled]
    assert list(unknown_variables([*names, "TRAINYARD_FOO_BAR"])) == [misspelled, ("TRAINYARD_FOO_BAR", "")]
    of_a_job = [*names, "TRAINYARD_ATTEMPT", "TRAINYARD_CHECKPOINT_DIR"]
    assert list(unknown_variables(of_a_job)) == [misspelled], "a service that is started in a job"


def test_allowed_variables_are_names_and_prefixes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRAINYARD_ALLOWED_VARIABLES", "WANDB_*, MALLOC_ARENA_MAX")
    assert Settings().allowed_variables == ("WANDB_*", "MALLOC_ARENA_MAX")


@pytest.mark.parametrize("names", ["*", "N*", "_*", "A=B", "NCCL_*X", "SLURM_*", "SRUN_X", "TRAINYARD_TOKEN", "RANK"])
def test_jobs_inherit_no_broad_or_reserved_names(monkeypatch: pytest.MonkeyPatch, names: str) -> None:
    monkeypatch.setenv("TRAINYARD_JOB_ENVIRONMENT", "NCCL_*, http_proxy")
    assert Settings().job_environment == ("NCCL_*", "http_proxy")
    monkeypatch.setenv("TRAINYARD_JOB_ENVIRONMENT", names)
    with pytest.raises(ValidationError, match=r"neither a name nor a prefix|cannot be inherited"):
        Settings()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("slurm_propagate", value) for value in ("nofile", "NOPE", "NOFILE,", "NONE,STACK", "ALL\nx")),
        *(("slurm_memory_option", value) for value in ("", "mem-per-node")),
        ("slurm_gpu_option", "gpus-per-task"),
        *(("slurm_srun_options", value) for value in ("--export=NONE", "--ntasks=9", "mpi=none", "--mpi=$(x)")),
    ],
)
def test_forms_of_requests_that_slurm_does_not_know_are_rejected(name: str, value: str) -> None:
    Settings(slurm_propagate="NOFILE,STACK", slurm_srun_options="--mpi=none --exact")
    with pytest.raises(ValidationError, match=name):
        Settings(**{name: value})


@pytest.mark.parametrize(
    ("text", "added", "removed"),
    [
        ("default", set(), set()),
        ("default, mail-type ,-nodelist", {"mail-type"}, {"nodelist"}),
        ("comment", {"comment"}, set(DEFAULT_OPTIONS) - {"comment"}),
        ("", set(), set(DEFAULT_OPTIONS)),
    ],
)
def test_allowed_options_are_widened_and_narrowed(
    monkeypatch: pytest.MonkeyPatch, text: str, added: set[str], removed: set[str]
) -> None:
    assert Settings().site.sbatch_options == set(DEFAULT_OPTIONS)
    monkeypatch.setenv("TRAINYARD_SLURM_ALLOWED_OPTIONS", text)
    assert Settings().site.sbatch_options == (set(DEFAULT_OPTIONS) | added) - removed


@pytest.mark.parametrize("text", ["wrap", "licences", "default,--comment", "*", "mail_type"])
def test_options_that_cannot_be_checked_are_rejected(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv("TRAINYARD_SLURM_ALLOWED_OPTIONS", text)
    with pytest.raises(ValidationError, match="is not an option that a spec can have"):
        Settings()


def test_extra_options_are_fixed_for_specs() -> None:
    assert Settings(slurm_extra_options="--reservation=ai --exclusive").site.fixed_options == {
        "reservation",
        "exclusive",
    }


@pytest.mark.parametrize("names", ["*", "P*", "_*", "lower", "A=B", "WANDB_*X", "LD_[AP]*"])
def test_broad_or_malformed_allowed_variables_are_rejected(monkeypatch: pytest.MonkeyPatch, names: str) -> None:
    monkeypatch.setenv("TRAINYARD_ALLOWED_VARIABLES", names)
    with pytest.raises(ValidationError, match="neither an uppercase name nor a prefix"):
        Settings()


@pytest.mark.parametrize(
    ("text", "mode", "message"),
    [
        (None, 0o600, "does not exist"),
        ("no key", 0o644, "does not contain a Fernet key"),
        ("", 0o600, "does not contain a Fernet key"),
        ("A" * 43 + "=", 0o644, "chmod 600"),
    ],
)
def test_serve_refuses_an_unusable_key_file(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    text: str | None,
    mode: int,
    message: str,
) -> None:
    key = tmp_path / "key"
    if text is not None:
        key.write_text(text)
        key.chmod(mode)
    monkeypatch.setenv("TRAINYARD_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.setenv("TRAINYARD_SECRETS_KEY_FILE", str(key))
    monkeypatch.setattr("service.main.configure_logging", lambda _format: None)
    assert main(["serve"]) == 1
    error = capsys.readouterr().err
    assert f"trainyard: TRAINYARD_SECRETS_KEY_FILE={key} " in error
    assert message in error
    assert ("chmod" in error) == (message == "chmod 600"), "a file without a key must not be changed"


def test_allowed_variables_without_effect_are_logged(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRAINYARD_ALLOWED_VARIABLES", "WANDB_*,LD_*")
    monkeypatch.setattr("service.main.configure_logging", lambda _format: None)
    monkeypatch.setattr("service.main.doctor", lambda _settings, **_options: 0)
    with capture_logs() as logs:
        assert main(["doctor"]) == 0
    assert [one["event"] for one in logs] == [
        "TRAINYARD_ALLOWED_VARIABLES: LD_* has no effect: no spec may set such a variable"
    ]


@pytest.mark.parametrize(
    ("url", "proxies", "warned"),
    [("https://a.example", "", True), ("https://a.example", "127.0.0.1", False), ("http://a.example", "", False)],
)
def test_https_without_trusted_proxies_is_a_warning_at_the_start(
    monkeypatch: pytest.MonkeyPatch, url: str, proxies: str, warned: bool
) -> None:
    monkeypatch.setenv("TRAINYARD_PUBLIC_URL", url)
    monkeypatch.setenv("TRAINYARD_TRUSTED_PROXIES", proxies)
    monkeypatch.setattr("service.main.configure_logging", lambda _format: None)
    monkeypatch.setattr("service.main.serve", lambda _settings: 0)
    with capture_logs() as logs:
        assert main(["serve"]) == 0
    assert any("TRAINYARD_TRUSTED_PROXIES is empty" in one["event"] for one in logs) == warned


def test_empty_file_of_authorities_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compose passes a variable that `.env` does not have as an empty text."""
    monkeypatch.setenv("TRAINYARD_WORKER_CA_FILE", "")
    assert Settings().worker_ca_file is None
    monkeypatch.setenv("TRAINYARD_WORKER_CA_FILE", "/shared/ca.pem")
    assert Settings().worker_ca_file == Path("/shared/ca.pem")


def test_invalid_setting_is_explained_in_plain_english(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TRAINYARD_PORT", "x")
    main(["doctor"])
    assert capsys.readouterr().err == "TRAINYARD_PORT: must be a whole number\n"


@pytest.mark.parametrize(
    ("names", "expected"), [(["nvidia3", "nvidiactl"], True), (["nvidiactl", "nvidia-uvm", "null"], False)]
)
def test_gpu_is_detected_by_any_device_file(tmp_path: Path, names: list[str], expected: bool) -> None:
    for name in names:
        (tmp_path / name).touch()
    assert has_gpu(tmp_path) == expected


@pytest.mark.parametrize("name", ["site_setup", "modules_init"])
def test_files_on_the_nodes_are_absolute(name: str) -> None:
    with pytest.raises(ValueError, match="is not an absolute path"):
        Settings(**{name: Path("site.sh")})
    assert getattr(Settings(**{name: Path("/etc/site.sh")}), name) == Path("/etc/site.sh")
