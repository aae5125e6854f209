from worker.environment.containers.variables import container_variables, runtime_variables

RANK = {
    "TRAINYARD_CHECKPOINT_DIR": "/r/checkpoints",
    "TRAINYARD_ARTIFACT_DIR": "/r/artifacts",
    "TRAINYARD_RESUMED": "1",
    "RANK": "1",
    "WORLD_SIZE": "2",
    "MASTER_ADDR": "n1",
    "TORCHELASTIC_RUN_ID": "x",
    "CUDA_VISIBLE_DEVICES": "0",
}
SPEC = {"APP_MODE": "fast", "DB_PASSWORD": "secret", "APPTAINER_CACHEDIR": "/etc"}
RUNTIME = {"PATH": "/bin", "HOME": "/root", "LD_LIBRARY_PATH": "/host", "ENROOT_DATA_PATH": "/enroot"}
HOST = RUNTIME | {"PYTHONPATH": "/service", "VIRTUAL_ENV": "/venv", "TRAINYARD_PARENT": "1", "APPTAINER_BIND": "/etc"}


class TestContainerVariables:
    def test_rank_gets_its_own_variables_and_those_of_the_spec(self):
        assert container_variables({**RANK, **SPEC, **HOST}, SPEC) == {**RANK, **SPEC}


class TestRuntimeVariables:
    def test_runtime_gets_no_variable_of_the_spec(self):
        assert runtime_variables({**RANK, **SPEC, **HOST}, SPEC) == RUNTIME
