"""The exact command lines of all runtimes, as their documentation states them."""

from dataclasses import replace

import pytest

from trainyard.contract.spec.containers import Mount
from worker.environment.containers.runtimes import RUNTIMES, ContainerRun

RUN = ContainerRun(
    "nvcr.io/nvidia/pytorch:25.01",
    ("python3", "-I", "/runs/j/init.py"),
    (Mount("/runs/j", "/runs/j"), Mount("/real/data", "/data", read_only=True)),
    user=(1000, 100),
    groups=(200,),
    limits={"nofile": (1024, 4096)},
    job="17",
    node="n1",
)
FILE = replace(RUN, image="/data/image")


def command(runtime, run):
    return " ".join(RUNTIMES[runtime](run).argv)


class TestApptainer:
    def test_reference_is_pulled_from_a_registry(self):
        assert command("apptainer", RUN) == (
            "apptainer exec --cleanenv --no-eval --no-home --no-mount=cwd --bind=/runs/j:/runs/j "
            "--bind=/real/data:/data:ro docker://nvcr.io/nvidia/pytorch:25.01 python3 -I /runs/j/init.py"
        )

    def test_file_with_gpus(self):
        assert command("apptainer", replace(FILE, gpus=True)) == (
            "apptainer exec --cleanenv --no-eval --no-home --no-mount=cwd --nv --bind=/runs/j:/runs/j "
            "--bind=/real/data:/data:ro /data/image python3 -I /runs/j/init.py"
        )


class TestCharliecloud:
    def test_reference_is_in_the_storage_of_the_node(self):
        assert command("charliecloud", RUN) == (
            "ch-run --unset-env=* --env-no-expand "
            "--set-env=PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin "
            "--bind=/runs/j:/runs/j --bind=/real/data:/data nvcr.io/nvidia/pytorch:25.01 -- "
            "python3 -I /runs/j/init.py"
        )

    def test_image_has_its_variables_and_a_writable_layer(self):
        run = replace(FILE, variables_file="/data/image/ch/environment", overlay=True)
        assert command("charliecloud", run) == (
            "ch-run --unset-env=* --env-no-expand "
            "--set-env=PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin "
            "--set-env=/data/image/ch/environment --write-fake --bind=/runs/j:/runs/j --bind=/real/data:/data "
            "/data/image -- python3 -I /runs/j/init.py"
        )


class TestEnroot:
    def test_file(self):
        assert command("enroot", FILE) == (
            "enroot start --mount /runs/j:/runs/j:none:x-create=auto,rbind "
            "--mount /real/data:/data:none:x-create=auto,rbind,ro -- /data/image python3 -I /runs/j/init.py"
        )

    def test_gpus(self):
        assert command("enroot", replace(FILE, image="docker://team", mounts=(), gpus=True)) == (
            "enroot start --env NVIDIA_VISIBLE_DEVICES=all --env NVIDIA_DRIVER_CAPABILITIES=compute,utility -- team "
            "python3 -I /runs/j/init.py"
        )


class TestPyxis:
    def test_reference(self):
        assert command("pyxis", RUN) == (
            "srun --jobid=17 --overlap --nodes=1 --ntasks=1 --nodelist=n1 --mem=0 --cpu-bind=none --mpi=none "
            "--input=all --kill-on-bad-exit=1 --quiet --container-image=nvcr.io#nvidia/pytorch:25.01 "
            "--container-mounts=/runs/j:/runs/j,/real/data:/data:ro --no-container-mount-home "
            "--no-container-entrypoint --container-workdir=/ python3 -I /runs/j/init.py"
        )

    def test_gpus_are_passed_by_variables_of_the_step(self):
        run = replace(FILE, gpus=True)
        assert "--container-image=/data/image" in RUNTIMES["pyxis"](run).argv
        assert RUNTIMES["pyxis"](run).variables == {
            "NVIDIA_VISIBLE_DEVICES": "all",
            "NVIDIA_DRIVER_CAPABILITIES": "compute,utility",
        }


class TestPodman:
    START = (
        "podman run --rm --interactive --cgroups=disabled --log-driver=none --network=host --ipc=host --cap-drop=all "
        "--security-opt=no-new-privileges --security-opt=label=disable --group-add=keep-groups "
        "--ulimit=nofile=1024:4096 "
    )
    MOUNTS = (
        "--mount=type=bind,source=/runs/j,target=/runs/j --mount=type=bind,source=/real/data,target=/data,readonly "
        "--entrypoint=python3 "
    )

    def test_reference_with_gpus(self):
        assert command("podman", replace(RUN, gpus=True)) == (
            self.START
            + "--device=nvidia.com/gpu=all "
            + self.MOUNTS
            + "nvcr.io/nvidia/pytorch:25.01 -I /runs/j/init.py"
        )

    def test_folder_is_used_below_a_writable_layer(self):
        run = replace(FILE, image_is_folder=True)
        assert command("podman", run) == self.START + self.MOUNTS + "--rootfs /data/image:O -I /runs/j/init.py"

    def test_file_is_loaded(self):
        assert command("podman", FILE) == self.START + self.MOUNTS + "docker-archive:/data/image -I /runs/j/init.py"


class TestDocker:
    def test_reference_with_gpus(self):
        assert command("docker", replace(RUN, gpus=True)) == (
            "docker run --rm --interactive --log-driver=none --network=host --ipc=host --cap-drop=all "
            "--security-opt=no-new-privileges --security-opt=label=disable --user=1000:100 --group-add=200 "
            "--ulimit=nofile=1024:4096 --gpus=all "
            "--mount=type=bind,source=/runs/j,target=/runs/j "
            "--mount=type=bind,source=/real/data,target=/data,readonly --entrypoint=python3 "
            "nvcr.io/nvidia/pytorch:25.01 -I /runs/j/init.py"
        )


class TestEveryRuntime:
    @pytest.mark.parametrize("runtime", RUNTIMES)
    def test_command_of_the_container_comes_last(self, runtime):
        assert RUNTIMES[runtime](replace(RUN, image="image")).argv[-2:] == ("-I", "/runs/j/init.py")
