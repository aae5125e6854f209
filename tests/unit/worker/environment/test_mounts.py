import pytest

from trainyard.contract.allowed_roots import UNRESTRICTED_ROOTS, AllowedRoots
from trainyard.contract.spec.containers import Container, Mount
from trainyard.contract.spec.training_spec import parse_spec
from worker.environment.containers.mounts import container_mounts, image_argument, prerequisite_mounts, upload_mounts
from worker.environment.prepare import EnvironmentRejectedError


@pytest.fixture
def data(tmp_path):
    (tmp_path / "data" / "sets").mkdir(parents=True)
    (tmp_path / "runs" / "j").mkdir(parents=True)
    (tmp_path / "outside").mkdir()
    return tmp_path / "data"


@pytest.fixture
def run(data, tmp_path):
    return tmp_path / "runs" / "j"


def mount(path, target=None):
    return Mount(str(path), str(target or path))


class TestContainerMounts:
    def test_run_and_roots_are_mounted_at_their_own_paths(self, data, run):
        roots = AllowedRoots(allowed=(str(data), str(data / "sets"), str(data / "absent")))
        assert {*container_mounts(Container(image="a"), run, roots)} == {mount(run), mount(data)}

    def test_run_in_an_allowed_root_is_mounted_with_it(self, run):
        assert container_mounts(Container(image="a"), run, AllowedRoots(allowed=(str(run.parent),))) == (
            mount(run.parent),
        )

    def test_root_folder_of_the_node_is_never_mounted(self, run):
        assert container_mounts(Container(image="a"), run, UNRESTRICTED_ROOTS) == (mount(run),)

    def test_linked_folder_is_mounted_where_the_link_is(self, data, run, tmp_path):
        (tmp_path / "link").symlink_to(data)
        roots = AllowedRoots(allowed=(str(tmp_path / "link"),))
        assert mount(data, tmp_path / "link") in container_mounts(Container(image="a"), run, roots)

    def test_mounts_of_the_spec_come_last(self, data, run):
        container = Container(image="a", mounts=(f"{data}/sets:/sets:ro",))
        mounts = container_mounts(container, run, AllowedRoots(allowed=(str(data),)))
        assert mounts[-1] == Mount(f"{data}/sets", "/sets", read_only=True)

    def test_link_out_of_the_roots_is_refused(self, data, run, tmp_path):
        (data / "link").symlink_to(tmp_path / "outside")
        container = Container(image="a", mounts=(f"{data}/sets:/a", f"{data}/link:/b"))
        with pytest.raises(EnvironmentRejectedError, match=r"^environment\.container\.mounts\.1: .* leads out"):
            container_mounts(container, run, AllowedRoots(allowed=(str(data),)))

    def test_hidden_source_is_refused(self, data, run):
        (data / ".ssh").mkdir()
        (data / "link").symlink_to(data / ".ssh")
        for name in (".ssh", "link"):
            container = Container(image="a", mounts=(f"{data}/{name}:/a",))
            with pytest.raises(EnvironmentRejectedError, match=r"mounts\.0: .*has the hidden name `\.ssh`"):
                container_mounts(container, run, AllowedRoots(allowed=(str(data),)))
            with pytest.raises(EnvironmentRejectedError, match=r"image: .*has the hidden name `\.ssh`"):
                image_argument(Container(image=f"{data}/{name}"), AllowedRoots(allowed=(str(data),)))

    def test_missing_source_is_refused(self, data, run):
        container = Container(image="a", mounts=(f"{data}/absent:/a",))
        with pytest.raises(EnvironmentRejectedError, match=r"mounts\.0: .*No such file"):
            container_mounts(container, run, AllowedRoots(allowed=(str(data),)))

    @pytest.mark.parametrize("name", ["a,b", "a:b", "a b"])
    def test_link_to_a_name_with_separators_is_refused(self, data, run, name):
        (data / name).mkdir()
        (data / "link").symlink_to(data / name)
        container = Container(image="a", mounts=(f"{data}/link:/a",))
        with pytest.raises(EnvironmentRejectedError, match="which no runtime can mount"):
            container_mounts(container, run, AllowedRoots(allowed=(str(data),)))

    def test_root_with_a_separator_is_refused(self, data, run):
        (data / "a,b").mkdir()
        with pytest.raises(EnvironmentRejectedError, match=r"^environment\.container: "):
            container_mounts(Container(image="a"), run, AllowedRoots(allowed=(f"{data}/a,b",)))


class TestImageArgument:
    def test_reference_is_passed_as_it_is(self):
        assert image_argument(Container(image="docker://a/b:c"), AllowedRoots(allowed=())) == "docker://a/b:c"

    def test_linked_image_is_resolved(self, data):
        (data / "newest").symlink_to(data / "sets")
        assert image_argument(Container(image=f"{data}/newest"), AllowedRoots(allowed=(str(data),))) == f"{data}/sets"

    def test_image_out_of_the_roots_is_refused(self, data, tmp_path):
        (data / "link").symlink_to(tmp_path / "outside")
        with pytest.raises(EnvironmentRejectedError, match=r"^environment\.container\.image: "):
            image_argument(Container(image=f"{data}/link"), AllowedRoots(allowed=(str(data),)))


class TestUploadMounts:
    def test_uploaded_files_are_mounted_where_nothing_else_shows_them(self, run, tmp_path):
        digest = "sha256:" + "1" * 64
        spec = parse_spec(
            {
                "version": 1,
                "name": "x",
                "task": "causal_lm",
                "model": {"source": "hf", "path": "/models/m"},
                "data": {"source": "file", "id": "file_" + "0" * 26, "digest": digest},
                "steps": 1,
            }
        )
        runs = tmp_path / "runs"
        file = str(runs / "files" / f"{'1' * 64}.jsonl")
        assert upload_mounts(spec, runs, [mount(run)]) == (Mount(file, file, read_only=True),)
        assert upload_mounts(spec, runs, [mount(runs)]) == ()


class TestPrerequisiteMounts:
    def test_run_directories_of_earlier_jobs_can_be_read(self, run, tmp_path):
        first, gone = f"job_{1:026}", f"job_{2:026}"
        script = {"version": 1, "task": "script", "argv": ["/opt/main"], "after": [f"{first}:ended", gone]}
        folder = tmp_path / "runs" / first
        folder.mkdir(parents=True)
        expected = (Mount(str(folder), str(folder), read_only=True),)
        assert prerequisite_mounts(parse_spec(script), tmp_path / "runs", [mount(run)]) == expected
        assert prerequisite_mounts(parse_spec(script), tmp_path / "runs", [mount(folder.parent)]) == ()
