import pytest
from pydantic import ValidationError

from tests.unit.contract.test_spec import BASE, problems
from trainyard.contract.spec.containers import Container, Mount, parse_mount, parse_reference
from trainyard.contract.spec.site import Site
from trainyard.contract.spec.training_spec import TrainingSpec
from trainyard.contract.spec.unsupported import unsupported_fields

SITE = Site(
    roots=("/data", "/scratch"),
    excluded_roots=("/data/state",),
    container_runtime="podman",
    container_images=("nvcr.io/nvidia/*", "python:3.12"),
)


def refusals(site: Site = SITE, **container: object) -> list[str]:
    spec = TrainingSpec.model_validate({**BASE, "environment": {"container": container}})
    return [f"{problem.param}: {problem.message}" for problem in unsupported_fields(spec, site)]


class TestImage:
    @pytest.mark.parametrize(
        ("image", "registry", "name"),
        [
            ("python", "", "python"),
            ("python:3.12", "", "python:3.12"),
            ("docker://nvcr.io/nvidia/pytorch:25.01-py3", "nvcr.io", "nvidia/pytorch:25.01-py3"),
            ("localhost:5000/team/a:b", "localhost:5000", "team/a:b"),
            ("nvidia/cuda@sha256:" + "0" * 64, "", "nvidia/cuda@sha256:" + "0" * 64),
        ],
    )
    def test_reference_is_split_into_registry_and_name(self, image, registry, name):
        assert parse_reference(image) == (registry, name)

    @pytest.mark.parametrize("image", ["/data/images/a.sif", "/data/a_b-c+d@e=1/root"])
    def test_plain_path_is_an_image(self, image):
        assert Container(image=image).image == image

    @pytest.mark.parametrize(
        "image",
        [
            *("--privileged", "-v /:/host", "$(x)", "`x`", "a\nb", "a b", "../a", "a/../b", "", "/", "a;b", "a'b"),
            *("/data/../etc", "/data//a", "/data/a/", "/data/./a", "/data/a b", "/data/a:O", "/data/a,b"),
            *("oci:/etc", "dir:x", "docker-archive:x.tar", "oci-archive:x", "containers-storage:x", "file:///etc"),
            *("instance://x", "http://host/a", "a:b:c", "A" * 1025, "library:x\x00", "é", "a#b", "/${X}"),
        ],
    )
    def test_hostile_image_is_rejected(self, image):
        with pytest.raises(ValidationError):
            Container(image=image)


class TestMount:
    def test_mount_has_source_target_and_mode(self):
        assert parse_mount("/data/a:/b") == Mount("/data/a", "/b")
        assert parse_mount("/data/a:/b:ro") == Mount("/data/a", "/b", read_only=True)
        assert parse_mount("/data/a:/b:rw") == Mount("/data/a", "/b")

    @pytest.mark.parametrize(
        "mount",
        [
            *("/data", "/data:", ":/data", "data:/b", "/data:b", "/data:/b:", "/data:/b:shared", "/data:/b:ro,exec"),
            *("/data/../etc:/b", "/data:/b/../etc", "/data/a,b:/b", "/data/a:b:/c", "/data/a b:/b", "/data:/b\n"),
            *("/data:/", "/data:/proc", "/data:/dev/shm", "/data:/sys/fs", "/data/$(x):/b", "/data/\\x:/b"),
            '/data:/b",source=/etc,target=/c',
        ],
    )
    def test_hostile_mount_is_rejected(self, mount):
        with pytest.raises(ValidationError):
            Container(image="python", mounts=(mount,))

    def test_rejection_names_the_mount(self):
        (problem,) = problems(environment={"container": {"image": "a", "mounts": ["/a:/b", "/c:d"]}})
        assert problem.startswith("environment.container.mounts.1: `d` cannot be mounted: use an absolute path")


class TestSection:
    @pytest.mark.parametrize("other", ["python", "venv", "conda"])
    def test_container_excludes_another_python(self, other):
        (problem,) = problems(environment={"container": {"image": "a"}, other: "/opt/a"})
        assert problem.startswith(f"environment.container: cannot be combined with `environment.{other}`")

    def test_container_requires_the_code_role(self):
        spec = TrainingSpec.model_validate({**BASE, "environment": {"container": {"image": "a"}}})
        assert spec.environment.code_fields == ("environment.container",)


class TestSite:
    def test_service_without_a_runtime_refuses_containers(self):
        (refusal,) = refusals(Site(), image="/data/a.sif")
        assert refusal.startswith("environment.container: needs a container runtime")
        assert "TRAINYARD_CONTAINER_RUNTIME" in refusal

    @pytest.mark.parametrize("image", ["nvcr.io/nvidia/pytorch:25.01", "docker://python:3.12", "/scratch/a.tar"])
    def test_allowed_image_is_accepted(self, image):
        assert refusals(image=image, mounts=["/data/sets:/sets:ro"]) == []

    @pytest.mark.parametrize("image", ["python:3.13", "evil.io/nvcr.io/nvidia/a", "nvcr.io/other/a"])
    def test_reference_outside_of_the_patterns_is_refused(self, image):
        (refusal,) = refusals(image=image)
        assert refusal.startswith("environment.container.image: is none of the images")

    @pytest.mark.parametrize("path", ["/etc", "/database", "/data/state/key", "/data/state"])
    def test_paths_outside_of_the_roots_are_refused(self, path):
        refused = refusals(image=path, mounts=[f"{path}:/b"])
        assert [text.partition(":")[0] for text in refused] == [
            "environment.container.image",
            "environment.container.mounts.0",
        ]

    def test_docker_refuses_an_image_file(self):
        (refusal,) = refusals(Site(roots=("/data",), container_runtime="docker"), image="/data/a.tar")
        assert "docker load" in refusal

    def test_charliecloud_refuses_read_only_mounts(self):
        site = Site(container_runtime="charliecloud", container_images=("*",))
        (refusal,) = refusals(site, image="team", mounts=["/data:/a", "/data:/b:ro"])
        assert refusal.startswith("environment.container.mounts.1: cannot be read-only")

    def test_enroot_refuses_an_image_of_a_registry(self):
        site = Site(container_runtime="enroot", container_images=("*",))
        assert refusals(site, image="team") == []
        (refusal,) = refusals(site, image="nvcr.io/nvidia/pytorch")
        assert "enroot import" in refusal

    def test_nsys_is_refused_in_a_container(self):
        spec = TrainingSpec.model_validate(
            {**BASE, "environment": {"container": {"image": "/data/a"}}, "profile": {"start_step": 1, "nsys": True}}
        )
        assert [problem.param for problem in unsupported_fields(spec, SITE)] == ["profile.nsys"]
