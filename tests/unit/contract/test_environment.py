"""The environment variables that a spec may set, and the permission that it needs."""

import pytest

from trainyard.contract.problems import SpecError
from trainyard.contract.spec.environment import (
    HARMLESS_VARIABLES,
    describe_restricted,
    forbidden_variables,
    ineffective_patterns,
    program_variables,
    rank_variables,
    reserved_reason,
    restricted_variables,
)
from trainyard.contract.spec.training_spec import TrainingSpec, parse_spec

PYTHON = """
    PYTHONHOME PYTHONPATH PYTHONSAFEPATH PYTHONPLATLIBDIR PYTHONSTARTUP PYTHONOPTIMIZE PYTHONBREAKPOINT
    PYTHONINSPECT PYTHONCASEOK PYTHONPYCACHEPREFIX PYTHONIOENCODING PYTHONUSERBASE PYTHONEXECUTABLE PYTHONWARNINGS
    PYTHONMALLOC PYTHONNOUSERSITE PYTHONDUMPREFSFILE PYTHONCOERCECLOCALE PYTHONTRACEMALLOC PYTHONPERFSUPPORT
    PYTHONDEVMODE PYTHON_PRESITE PYTHON_HISTORY PYTHON_FROZEN_MODULES PYTHON_PERF_JIT_SUPPORT
    PYTHON_DISABLE_REMOTE_DEBUG COVERAGE_PROCESS_START COVERAGE_PROCESS_CONFIG COVERAGE_RCFILE BROWSER PAGER
    MANPAGER EDITOR VISUAL SHELL PYTEST_PLUGINS PYTEST_ADDOPTS SETUPTOOLS_USE_DISTUTILS MPLBACKEND MPLCONFIGDIR
    MATPLOTLIBRC NUMBA_CACHE_DIR
"""
GLIBC_AND_SHELLS = """
    LD_PRELOAD LD_LIBRARY_PATH LD_AUDIT LD_DEBUG_OUTPUT LD_PROFILE_OUTPUT GCONV_PATH LOCPATH NLSPATH TZ TZDIR
    MALLOC_TRACE HOSTALIASES LOCALDOMAIN RES_OPTIONS RESOLV_HOST_CONF GETCONF_DIR NIS_PATH GLIBC_TUNABLES LANG
    LC_ALL LANGUAGE TEXTDOMAINDIR TMPDIR TMP TEMP DYLD_INSERT_LIBRARIES BASH_ENV ENV IFS SHELLOPTS BASHOPTS
    PROMPT_COMMAND PS4 CDPATH GLOBIGNORE LESSOPEN LESSCLOSE SUDO_ASKPASS TERMINFO TERMCAP HOME PATH USER LOGNAME
    VIRTUAL_ENV XDG_CONFIG_HOME XDG_CACHE_HOME XDG_DATA_HOME XDG_RUNTIME_DIR PERL5LIB PERL5OPT RUBYLIB RUBYOPT
    NODE_OPTIONS JAVA_TOOL_OPTIONS
"""
OPENSSL_AND_NETWORK = """
    OPENSSL_CONF OPENSSL_CONF_INCLUDE OPENSSL_ENGINES OPENSSL_MODULES SSL_CERT_FILE SSL_CERT_DIR SSLKEYLOGFILE
    RANDFILE CTLOG_FILE HTTP_PROXY HTTPS_PROXY ALL_PROXY FTP_PROXY NO_PROXY REQUESTS_CA_BUNDLE CURL_CA_BUNDLE
    CURL_HOME NETRC WGETRC KRB5_CONFIG KRB5CCNAME GSS_MECH_CONFIG NODE_EXTRA_CA_CERTS AWS_CONFIG_FILE
    AWS_SHARED_CREDENTIALS_FILE AWS_CA_BUNDLE GOOGLE_APPLICATION_CREDENTIALS KUBECONFIG DOCKER_CONFIG DOCKER_HOST
"""
CUDA_AND_NCCL = """
    CUDA_INJECTION64_PATH CUDA_INJECTION32_PATH CUDA_HOME CUDA_PATH CUDA_ROOT CUDA_CACHE_PATH CUDA_COREDUMP_FILE
    CUDA_COREDUMP_PIPE CUDA_LOG_FILE CUDA_MPS_PIPE_DIRECTORY CUDA_MPS_LOG_DIRECTORY CUDA_VISIBLE_DEVICES
    CUDNN_LIBRARY CUDNN_LOGDEST_DBG CUBLAS_LOGDEST_DBG CUBLASLT_LOG_FILE NVTX_INJECTION64_PATH NVTX_INJECTION32_PATH
    NVBLAS_CONFIG_FILE COMPUTE_PROFILE_CONFIG CUPTI_LIB_PATH NVIDIA_DRIVER_CAPABILITIES ROCR_VISIBLE_DEVICES
    NCCL_NET NCCL_NET_PLUGIN NCCL_TUNER_PLUGIN NCCL_PROFILER_PLUGIN NCCL_ENV_PLUGIN NCCL_GIN_PLUGIN NCCL_CONF_FILE
    NCCL_TOPO_FILE NCCL_TOPO_DUMP_FILE NCCL_GRAPH_FILE NCCL_GRAPH_DUMP_FILE NCCL_DEBUG_FILE NCCL_COLLNET_ENABLE
    NCCL_COMM_ID NCCL_CUDA_PATH NCCL_TUNER_CONFIG_FILE NCCL_INSPECTOR_DUMP_DIR NCCL_PROFILE_DUMP_FILE NCCL_RAS_ADDR
    OMPI_MCA_mca_component_path UCX_MODULE_DIR FI_PROVIDER_PATH IBV_DRIVERS RDMAV_DRIVERS IBV_CONFIG_DIR
"""
TORCH_TRITON_AND_COMPILERS = """
    TORCH_LOGS TORCH_LOGS_OUT TORCH_TRACE TORCH_HOME TORCH_EXTENSIONS_DIR TORCH_COMPILE_DEBUG
    TORCH_COMPILE_DEBUG_DIR TORCH_DEVICE_BACKEND_AUTOLOAD TORCH_NCCL_DEBUG_INFO_TEMP_FILE
    TORCH_NCCL_DEBUG_INFO_PIPE_FILE TORCHINDUCTOR_CACHE_DIR TORCHINDUCTOR_CPP_WRAPPER TORCHELASTIC_ERROR_FILE
    PYTORCH_KERNEL_CACHE_PATH PYTORCH_TUNABLEOP_FILENAME KINETO_CONFIG KINETO_USE_DAEMON ENABLE_INTEL_ITT
    TRITON_PTXAS_PATH TRITON_CUOBJDUMP_PATH TRITON_NVDISASM_PATH TRITON_CACHE_DIR TRITON_HOME TRITON_LIBCUDA_PATH
    TRITON_LIBDEVICE_PATH TRITON_LIBHIP_PATH TRITON_CUDACRT_PATH TRITON_CUDART_PATH TRITON_CUPTI_PATH
    TRITON_DUMP_DIR TRITON_OVERRIDE_DIR TRITON_CACHE_MANAGER TRITON_REMOTE_CACHE_BACKEND TRITON_PLUGIN_DIRS
    TRITON_PASS_PLUGIN_PATH CC CXX CPP CFLAGS CXXFLAGS CPPFLAGS LDFLAGS LDSHARED AR NVCC_PREPEND_FLAGS
    NVCC_APPEND_FLAGS CUDAHOSTCXX CPATH C_INCLUDE_PATH CPLUS_INCLUDE_PATH LIBRARY_PATH COMPILER_PATH GCC_EXEC_PREFIX
    CCACHE_PREFIX MAKEFLAGS MAKEFILES
"""
OPENMP_AND_BLAS = """
    OMP_TOOL OMP_TOOL_LIBRARIES OMP_TOOL_VERBOSE_INIT KMP_DEBUG_BUF KMP_CPUINFO_FILE MKLROOT MKL_VERBOSE_OUTPUT_FILE
    ONEDNN_JIT_DUMP ONEDNN_VERBOSE DNNL_JIT_DUMP OPENBLAS_CORETYPE TBBROOT ITT_LIB
"""
GIT_PIP_AND_MODELS = """
    GIT_SSH GIT_SSH_COMMAND GIT_ASKPASS GIT_EDITOR GIT_SEQUENCE_EDITOR GIT_PAGER GIT_EXTERNAL_DIFF GIT_EXEC_PATH
    GIT_CONFIG GIT_CONFIG_GLOBAL GIT_CONFIG_SYSTEM GIT_CONFIG_COUNT GIT_CONFIG_KEY_0 GIT_CONFIG_VALUE_0
    GIT_CONFIG_PARAMETERS GIT_TEMPLATE_DIR GIT_PROXY_COMMAND GIT_DIR GIT_WORK_TREE GIT_TRACE GIT_SSL_CAINFO
    GIT_SSL_CERT GIT_SSL_KEY GIT_ALLOW_PROTOCOL SSH_ASKPASS SSH_AUTH_SOCK PIP_CONFIG_FILE PIP_INDEX_URL PIP_TARGET
    PIP_CERT PIP_CLIENT_CERT PIP_FIND_LINKS UV_INDEX_URL UV_CONFIG_FILE CONDARC HF_HOME HF_HUB_CACHE HF_ENDPOINT
    HF_MODULES_CACHE HF_TOKEN_PATH HF_DATASETS_CACHE TRANSFORMERS_CACHE WANDB_DIR WANDB_CONFIG_DIR
"""
CODE_LOADING = tuple(
    name
    for group in (
        *(PYTHON, GLIBC_AND_SHELLS, OPENSSL_AND_NETWORK, CUDA_AND_NCCL, TORCH_TRITON_AND_COMPILERS, OPENMP_AND_BLAS),
        GIT_PIP_AND_MODELS,
    )
    for name in group.upper().split()
)
"""Variables that common programs read as a path, a library, a module, a command, a proxy or an authority."""


def spec_with(
    variables: dict[str, str] | None = None, secrets: tuple[str, ...] = (), **environment: object
) -> TrainingSpec:
    return parse_spec(
        {
            "task": "regression",
            "model": {"source": "builtin", "name": "mlp"},
            "data": {"source": "builtin", "name": "parity"},
            "steps": 1,
            "environment": {"variables": variables or {}, "secrets": secrets, **environment},
        }
    )


class TestRestrictedVariables:
    @pytest.mark.parametrize("name", CODE_LOADING)
    def test_code_loading_variable_requires_the_code_role(self, name: str) -> None:
        assert restricted_variables(spec_with({name: "x"})) == [f"environment.variables.{name}"]

    @pytest.mark.parametrize("name", CODE_LOADING)
    def test_code_loading_variable_is_restricted_as_a_secret_too(self, name: str) -> None:
        assert restricted_variables(spec_with(secrets=(name,))) == [f"environment.secrets.{name}"]

    def test_unknown_variable_requires_the_code_role(self) -> None:
        assert restricted_variables(spec_with({"NEXT_YEARS_PLUGIN": "x"})) == [
            "environment.variables.NEXT_YEARS_PLUGIN"
        ]

    def test_message_names_every_field_and_suggests_similar_names(self) -> None:
        fields = ["environment.variables.OMP_NUM_THREAD", "environment.variables.TORCH_LOGS", "environment.secrets.X"]
        message = describe_restricted(fields)
        assert "`environment.variables.OMP_NUM_THREAD` (did you mean OMP_NUM_THREADS?)" in message
        assert "`environment.variables.TORCH_LOGS`," in message
        assert "APP_" in message
        assert "end in _TOKEN" in message
        many = describe_restricted([f"environment.variables.X{number}" for number in range(30)])
        assert " and 20 more: " in many
        assert "_TOKEN" not in many

    def test_harmless_and_own_variables_are_for_everybody(self) -> None:
        names = {name for name in HARMLESS_VARIABLES if "*" not in name} | {"APP_MODE", "APP_"}
        for name in names:
            assert restricted_variables(spec_with({name: "1"})) == []
            assert reserved_reason(name) is None

    def test_administrator_permits_names_and_prefixes(self) -> None:
        spec = spec_with({"WANDB_MODE": "offline", "MALLOC_ARENA_MAX": "2", "WANDBX": "1"})
        assert restricted_variables(spec, ("WANDB_*", "MALLOC_ARENA_MAX")) == ["environment.variables.WANDBX"]

    def test_secrets_named_like_credentials_are_for_everybody(self) -> None:
        names = ("HF_TOKEN", "WANDB_API_KEY", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "DB_PASSWORD", "APP_DSN")
        assert restricted_variables(spec_with(secrets=names)) == []
        assert restricted_variables(spec_with({"HF_TOKEN": "x"})) == ["environment.variables.HF_TOKEN"]


class TestForbiddenVariables:
    @pytest.mark.parametrize(
        ("name", "reason"),
        [
            ("TRAINYARD_ATTEMPT", "is reserved for the service"),
            ("TRAINYARD_DATABASE_URL", "is reserved for the service"),
            ("PATH", "is reserved for the service"),
            ("SLURM_JOB_ID", "is reserved for the scheduler, whose options are in `resources`"),
            ("SBATCH_EXPORT", "is reserved for the scheduler, whose options are in `resources`"),
            ("SUBMITIT_EXECUTOR", "is reserved for the scheduler, whose options are in `resources`"),
            (
                "CUDA_VISIBLE_DEVICES",
                "is set from the GPUs of the allocation, which `gpus` and `resources` request",
            ),
            ("RANK", "is set by torchrun for each rank, from `gpus` and `resources`"),
            ("MASTER_ADDR", "is set by torchrun for each rank, from `gpus` and `resources`"),
            ("TORCHELASTIC_RUN_ID", "is set by torchrun for each rank, from `gpus` and `resources`"),
            ("LD_PRELOAD", "changes which code runs"),
            ("PYTHONPATH", "changes which code runs"),
            ("PYTHONHOME", "changes which code runs"),
            ("BASH_ENV", "changes which code runs"),
        ],
    )
    def test_reserved_name_is_rejected_as_variable_and_secret(self, name: str, reason: str) -> None:
        (problem,) = forbidden_variables(spec_with({name: "x", "FINE": "y"}))
        assert str(problem) == f"environment.variables.{name}: {reason}; a spec may not set this variable"
        (problem,) = forbidden_variables(spec_with(secrets=(name, "FINE")))
        assert str(problem) == f"environment.secrets.{name}: {reason}; a spec may not set this variable"

    def test_program_may_have_variables_that_select_code(self) -> None:
        names = {"PYTHONPATH": "src", "PATH": "/bin", "HOME": "/h", "LD_LIBRARY_PATH": "/l", "APP_A": "1"}
        spec = parse_spec({"task": "script", "argv": ["a.py"], "environment": {"variables": names}})
        assert forbidden_variables(spec) == []
        assert program_variables(spec) == {name: value for name, value in names.items() if name != "APP_A"}
        assert rank_variables(spec, {}) == {"APP_A": "1"}
        secret = parse_spec({"task": "script", "argv": ["a.py"], "environment": {"secrets": ["PYTHONPATH"]}})
        ranked = parse_spec({"task": "script", "argv": ["a.py"], "environment": {"variables": {"RANK": "0"}}})
        assert [len(forbidden_variables(one)) for one in (secret, ranked)] == [1, 1]

    def test_users_own_names_are_accepted(self) -> None:
        assert (
            forbidden_variables(spec_with({"OMP_NUM_THREADS": "1", "MY_FLAG": "a b $(c) `d`", "TOKENIZER": "x"})) == []
        )


class TestRankVariables:
    def test_ranks_get_variables_and_secrets(self) -> None:
        spec = spec_with({"APP_MODE": "x"}, ("HF_TOKEN",))
        assert rank_variables(spec, {"HF_TOKEN": "value"}) == {"APP_MODE": "x", "HF_TOKEN": "value"}

    def test_reserved_names_never_reach_a_rank(self) -> None:
        spec = spec_with({"RANK": "7", "LD_PRELOAD": "/x.so"}, ("TRAINYARD_ATTEMPT",))
        assert rank_variables(spec, {"TRAINYARD_ATTEMPT": "other"}) == {}


@pytest.mark.parametrize(
    ("variables", "secrets"), [({"HF_TOKEN": "x"}, ("HF_TOKEN",)), ({}, ("HF_TOKEN", "HF_TOKEN")), ({}, ("hf_token",))]
)
def test_secret_names_are_unique_and_uppercase(variables: dict[str, str], secrets: tuple[str, ...]) -> None:
    with pytest.raises(SpecError, match=r"^environment"):
        spec_with(variables, secrets)


def test_allowed_patterns_of_reserved_variables_have_no_effect() -> None:
    allowed = ("WANDB_*", "LD_*", "PYTHONPATH", "TRAINYARD_X", "MALLOC_ARENA_MAX")
    assert ineffective_patterns(allowed) == ["LD_*", "PYTHONPATH", "TRAINYARD_X"]


def test_problem_of_an_invalid_name_has_the_path_of_the_spec() -> None:
    with pytest.raises(SpecError) as caught:
        parse_spec({**spec_with({}).model_dump(), "environment": {"variables": {"lower": "x"}}})
    assert [str(problem) for problem in caught.value.problems] == [
        "environment.variables.lower: must be an uppercase name, such as `HF_TOKEN` or `APP_NAME`"
    ]
