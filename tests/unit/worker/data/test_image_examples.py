"""Images of folders and Parquet files: the same examples, bad ones named, and random changes by number alone."""

import os
import shutil

import numpy as np
import pytest
import torch
from PIL import Image

from tests.support.images import SIZE, digits, encoded, save_vit, write_folder, write_parquet
from trainyard.contract.allowed_roots import AllowedRoots
from trainyard.contract.spec.image_data import ImageFiles
from worker.core.errors import RefusedError
from worker.data import image_sources
from worker.data.image_examples import load_images
from worker.data.image_pixels import Augmentation, pixel_format
from worker.data.sampler import NumberedByEpoch, WholePass, generator
from worker.data.text_examples import DataAccess
from worker.data.token_cache import TokenCache
from worker.tasks.hf_model import HfFolder

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def format_(tmp_path_factory):
    folder = HfFolder(str(save_vit(tmp_path_factory.mktemp("model"))))
    return pixel_format(folder.image_processor, "model.path")


@pytest.fixture(scope="module")
def pairs():
    """Images in the order of a folder."""
    return sorted(digits(0, 24), key=lambda pair: pair[1])


@pytest.fixture
def folder(tmp_path, pairs):
    return write_folder(tmp_path / "images", pairs)


def load(format_, path, known=(), access=None, seed=3, **options):
    return load_images(ImageFiles(path=str(path), **options), format_, seed, known, access or DataAccess())


def test_folder_and_table_of_the_same_images_give_equal_examples(tmp_path, format_, folder, pairs):
    table = write_parquet(tmp_path / "images.parquet", pairs, batch_size=5)
    one, other = (load(format_, path, eval_fraction=0.25, crop=0.5, flip=True).examples for path in (folder, table))
    assert (one.train, one.held_out, one.classes) == (18, 6, tuple(sorted({label for _, label in pairs})))
    assert one.classes == other.classes
    for first, second in zip(one.digest_arrays(), other.digest_arrays(), strict=True):
        assert np.array_equal(first, second)
    for first, second in zip(one.train_batch(np.arange(36), CPU), other.train_batch(np.arange(36), CPU), strict=True):
        assert torch.equal(first, second)
    for first, second in zip(
        one.held_out_batch(np.arange(6), CPU), other.held_out_batch(np.arange(6), CPU), strict=True
    ):
        assert torch.equal(first, second)


def test_batches_are_what_the_image_processor_makes(format_, folder, pairs):
    examples = load(format_, folder).examples
    images, labels = examples.train_batch(np.array([5, 2]), CPU)
    assert images.shape == (2, 3, SIZE, SIZE)
    picture = Image.open(folder / pairs[5][1] / "005.png").convert("RGB")
    assert torch.equal(images[0], format_.processor(images=[picture], return_tensors="pt")["pixel_values"][0])
    assert [examples.classes[label] for label in labels] == [pairs[5][1], pairs[2][1]]


def test_held_out_images_are_those_of_the_other_path(tmp_path, format_, folder, pairs):
    held_out = write_parquet(tmp_path / "b.parquet", pairs[3:5])
    examples = load(format_, folder, eval_path=str(held_out)).examples
    assert (examples.train, examples.held_out) == (24, 2)
    images, labels = examples.held_out_batch(np.arange(2), CPU)
    expected_images, expected_labels = examples.train_batch(np.array([3, 4]), CPU)
    assert torch.equal(images, expected_images)
    assert torch.equal(labels, expected_labels)


class TestSources:
    @pytest.fixture
    def sources(self, tmp_path, pairs):
        write_folder(tmp_path / "most", pairs[:20])
        table = write_parquet(tmp_path / "few.parquet", [(data, "other") for data, _ in pairs[20:]])
        return ({"path": str(tmp_path / "most"), "name": "most"}, {"path": str(table), "weight": 3})

    def load(self, format_, sources, **options):
        return load_images(ImageFiles(sources=sources, **options), format_, 3)

    def test_each_has_its_share_of_an_epoch_and_its_own_evaluation_set(self, format_, sources):
        loaded = self.load(format_, sources, eval_fraction=0.25)
        examples = loaded.examples
        assert (examples.train, examples.held_out_sets) == (18, {"most": 5, "source_2": 1})
        assert examples.mixture.order(seed=3, shuffle=True).draws == [5, 13]
        assert examples.order_by_epoch() is None
        assert [notice.kind for notice in loaded.notices] == ["data_mixture"]
        _, labels = examples.held_out_batch(np.arange(6), CPU)
        assert [examples.classes[label] == "other" for label in labels] == [False] * 5 + [True]
        _, labels = examples.train_batch(np.arange(18), CPU)
        assert [examples.classes[label] == "other" for label in labels] == [False] * 15 + [True] * 3

    def test_repeated_image_is_changed_anew_in_each_pass(self, format_, sources):
        examples = self.load(format_, sources, crop=0.3, flip=True).examples
        epoch = examples.order_by_epoch().of_epoch(0)
        again = [index for index in epoch if index % 24 == 21]
        assert again == [number * 24 + 21 for number in range(5)]
        images, labels = examples.train_batch(np.array(again), CPU)
        assert len(set(labels.tolist())) == 1
        assert len({image.numpy().tobytes() for image in images}) == 5

    def test_digest_is_of_the_training_images_of_all_sources(self, tmp_path, format_, sources, pairs):
        def digest(*given, **options):
            return [array.tobytes() for array in self.load(format_, given, **options).examples.digest_arrays()]

        plain = digest(*sources)
        assert digest(sources[0] | {"weight": 2}, sources[1], eval_path=sources[0]["path"]) == plain
        other = write_parquet(tmp_path / "other.parquet", [(pairs[0][0], "other")] * 4)
        assert digest(sources[0], {"path": str(other)}) != plain

    def test_set_without_images_and_too_small_weights_are_refused(self, format_, sources):
        with pytest.raises(RefusedError, match=r"data\.eval_fraction: holds no image of data\.sources\.1\.path out"):
            self.load(format_, sources, eval_fraction=0.1)
        with pytest.raises(RefusedError, match=r"data\.sources\.0\.weight is 0\.001, too little"):
            self.load(format_, (sources[0] | {"weight": 0.001}, sources[1]))
        with pytest.raises(RefusedError, match=r"data\.sources\.0\.columns: has no effect for folders"):
            self.load(format_, (sources[0] | {"columns": {"image": "a"}}, sources[1]))


def test_digest_depends_on_pixels_labels_and_order(tmp_path, format_, pairs):
    def digest(name, images, **options):
        return [
            array.tobytes()
            for array in load(format_, write_folder(tmp_path / name, images), **options).examples.digest_arrays()
        ]

    base = digest("a", pairs)
    assert digest("b", pairs) == base
    assert digest("c", [(pairs[1][0], pairs[0][1]), *pairs[1:]]) != base
    assert digest("d", [(data, label.replace("digit-0", "zero")) for data, label in pairs]) != base
    assert digest("e", pairs, on_bad_line="skip") == base


class TestRoom:
    def room(self, monkeypatch, free):
        monkeypatch.setattr(shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(2**40, 2**40 - free, free))

    def test_copy_that_does_not_fit_is_refused_before_it_is_written(self, tmp_path, format_, folder, monkeypatch):
        needed = sum(path.stat().st_size for path in folder.rglob("*.png")) + 24 * 44
        cache = TokenCache(tmp_path / "cache")
        self.room(monkeypatch, needed - 1)
        with pytest.raises(RefusedError) as caught:
            load(format_, folder, access=DataAccess(cache=cache))
        for text in ("data.path: ", f"needs {needed} bytes", f"in {cache.root},", f"which has {needed - 1} bytes"):
            assert text in str(caught.value)
        assert list(cache.root.iterdir()) == []
        self.room(monkeypatch, needed)
        assert load(format_, folder, access=DataAccess(cache=cache)).examples.train == 24

    def test_copy_that_exists_needs_no_room(self, tmp_path, format_, folder, monkeypatch):
        for path in folder.rglob("*.png"):
            os.utime(path, (1e9, 1e9))
        monkeypatch.setattr(image_sources, "_SETTLED_SECONDS", -1e9)
        cache = TokenCache(tmp_path / "cache")
        load(format_, folder, access=DataAccess(cache=cache))
        self.room(monkeypatch, 0)
        assert load(format_, folder, access=DataAccess(cache=cache)).examples.train == 24

    def test_table_needs_the_room_of_its_file(self, tmp_path, format_, pairs, monkeypatch):
        table = write_parquet(tmp_path / "images.parquet", pairs)
        self.room(monkeypatch, 0)
        with pytest.raises(RefusedError, match=f"needs {table.stat().st_size + 44} bytes"):
            load(format_, table)


class TestClasses:
    def test_known_classes_keep_their_order_if_they_suffice(self, format_, folder):
        known = tuple(f"digit-{number}" for number in reversed(range(11)))
        assert load(format_, folder, known).examples.classes == known
        assert load(format_, folder, ("digit-1", "digit-0")).examples.classes[0] == "digit-0"

    def test_numbers_are_ordered_by_value(self, tmp_path, format_, pairs):
        images = [(data, str(9 + number % 2)) for number, (data, _) in enumerate(pairs)]
        assert load(format_, write_folder(tmp_path / "n", images)).examples.classes == ("9", "10")

    def test_numbers_without_names_are_names(self, tmp_path, format_, pairs):
        import pyarrow as pa
        import pyarrow.parquet as pq

        path = tmp_path / "plain.parquet"
        pq.write_table(pa.table({"picture": [data for data, _ in pairs[:4]], "kind": [7, 3, 7, 3]}), path)
        examples = load(format_, path, columns={"image": "picture", "label": "kind"}).examples
        assert (examples.classes, examples.labels.tolist()) == (("3", "7"), [1, 0, 1, 0])

    def test_one_class_and_unknown_classes_of_an_evaluation_are_refused(self, tmp_path, format_, folder, pairs):
        with pytest.raises(RefusedError, match="have 1 classes"):
            load(format_, write_folder(tmp_path / "one", [(pairs[0][0], "a")]))
        other = write_folder(tmp_path / "other", [(pairs[0][0], "unknown")])
        with pytest.raises(RefusedError, match=r"data\.eval_path: has a label that no training image has"):
            load(format_, folder, eval_path=str(other))


class TestBadImages:
    def test_bad_file_is_refused_with_its_name_and_reason_or_skipped(self, format_, folder, pairs):
        bad = folder / pairs[0][1] / "zzz.png"
        bad.write_bytes(pairs[0][0][:-30])
        with pytest.raises(RefusedError, match=rf"data\.path: {bad} cannot be decoded") as raised:
            load(format_, folder)
        assert "data.on_bad_line" in raised.value.hint
        loaded = load(format_, folder, on_bad_line="skip")
        assert loaded.examples.train == 24
        assert [notice.kind for notice in loaded.notices] == ["bad_lines_skipped"]
        assert str(bad) in loaded.notices[0].message

    def test_too_many_bad_files_are_refused_also_if_another_job_skipped_them(
        self, tmp_path, format_, folder, pairs, monkeypatch
    ):
        monkeypatch.setattr(image_sources, "_SETTLED_SECONDS", 0.0)
        for number in range(2):
            (folder / pairs[0][1] / f"z{number}.png").write_bytes(b"text")
        access = DataAccess(cache=TokenCache(tmp_path / "cache"))
        for limit in (1, 2, 1):
            if limit == 2:
                assert load(format_, folder, access=access, on_bad_line="skip", max_bad_lines=2).examples.train == 24
                continue
            with pytest.raises(RefusedError, match=r"more than 1 bad images \(data\.max_bad_lines\)"):
                load(format_, folder, access=access, on_bad_line="skip", max_bad_lines=1)

    @pytest.mark.parametrize(
        ("column", "value", "reason"),
        [
            ("image", None, "row 2 has no bytes of an image in column `image`"),
            ("image", b"text", "row 2 is not an image"),
            ("label", None, "row 2 has no string and no whole number in column `label`"),
            ("label", "", "row 2 has a label that is no text, empty"),
        ],
    )
    def test_bad_row_is_named(self, tmp_path, format_, pairs, column, value, reason):
        import pyarrow as pa
        import pyarrow.parquet as pq

        columns = {"image": [data for data, _ in pairs[:3]], "label": ["a", "b", "a"]}
        columns[column][1] = value
        pq.write_table(pa.table(columns), tmp_path / "rows.parquet")
        with pytest.raises(RefusedError, match=reason):
            load(format_, tmp_path / "rows.parquet")

    def test_number_that_names_no_class_is_bad(self, tmp_path, format_, pairs):
        import pyarrow as pa
        import pyarrow.parquet as pq

        path = write_parquet(tmp_path / "a.parquet", pairs[:6])
        table = pq.read_table(path)
        pq.write_table(table.set_column(1, table.schema.field(1), pa.array([0, 0, -1, 1, 1, 1])), path)
        with pytest.raises(RefusedError, match="row 3 has a number in column `label` that is none of a class"):
            load(format_, path)

    def test_missing_column_is_named(self, tmp_path, format_, pairs):
        path = write_parquet(tmp_path / "a.parquet", pairs[:6])
        with pytest.raises(RefusedError, match=r"row 1 has no column `picture`, which data\.columns can name"):
            load(format_, path, columns={"image": "picture"})


class TestFolders:
    def test_folder_without_classes_and_one_of_splits_are_refused(self, tmp_path, format_, pairs):
        write_folder(tmp_path / "splits", [(data, f"train/{label}") for data, label in pairs])
        with pytest.raises(RefusedError, match=r"is a folder, and .* must have a folder for each class"):
            load(format_, tmp_path / "splits")
        (tmp_path / "flat").mkdir()
        (tmp_path / "flat" / "a.png").write_bytes(pairs[0][0])
        with pytest.raises(RefusedError, match="has no subfolder with images"):
            load(format_, tmp_path / "flat")

    def test_hidden_files_are_left_out_and_pipes_refused(self, format_, folder, pairs):
        (folder / ".cache").mkdir()
        (folder / pairs[0][1] / ".DS_Store").write_bytes(b"x")
        assert load(format_, folder).examples.train == 24
        os.mkfifo(folder / pairs[0][1] / "pipe.png")
        with pytest.raises(RefusedError, match="is no regular file"):
            load(format_, folder)

    def test_links_out_of_the_roots_are_refused(self, tmp_path, format_, folder, pairs):
        access = DataAccess(roots=AllowedRoots(allowed=(str(folder),)))
        outside = write_folder(tmp_path / "outside", pairs)
        (folder / pairs[0][1] / "link.png").symlink_to(outside / pairs[0][1] / "000.png")
        with pytest.raises(RefusedError, match="leads out of the folders"):
            load(format_, folder, access=access)
        (folder / pairs[0][1] / "link.png").unlink()
        (folder / "other").symlink_to(outside / pairs[0][1])
        with pytest.raises(RefusedError, match="leads out of the folders"):
            load(format_, folder, access=access)

    def test_links_to_hidden_files_are_refused(self, tmp_path, format_, folder, pairs):
        hidden = write_folder(tmp_path / ".hidden", pairs)
        (folder / pairs[0][1] / "link.png").symlink_to(hidden / pairs[0][1] / "000.png")
        access = DataAccess(roots=AllowedRoots(allowed=(str(tmp_path),)))
        with pytest.raises(RefusedError, match=r"data\.path: .* has the hidden name `\.hidden`"):
            load(format_, folder, access=access)
        with pytest.raises(RefusedError, match=r"data\.path: .* has the hidden name `\.hidden`"):
            load(format_, hidden, access=access)

    def test_columns_and_too_many_images_are_refused(self, format_, folder, monkeypatch):
        with pytest.raises(RefusedError, match=r"data\.columns: has no effect for folders"):
            load(format_, folder, columns={"image": "a"})
        monkeypatch.setattr(image_sources, "MAX_IMAGES", 5)
        with pytest.raises(RefusedError, match="more than 5 images"):
            load(format_, folder)


class TestCache:
    def test_images_are_decoded_once_until_a_file_changes(self, tmp_path, format_, folder, pairs, monkeypatch):
        monkeypatch.setattr(image_sources, "_SETTLED_SECONDS", 0.0)
        cache = TokenCache(tmp_path / "cache")
        access = DataAccess(cache=cache)
        first = load(format_, folder, access=access).examples
        assert load(format_, folder, access=access).examples.stored[0].entry.path == first.stored[0].entry.path
        (folder / pairs[0][1] / "000.png").write_bytes(encoded(Image.new("L", (8, 8))))
        changed = load(format_, folder, access=access).examples
        assert changed.stored[0].entry.path != first.stored[0].entry.path
        assert changed.digest_arrays()[0].tobytes() != first.digest_arrays()[0].tobytes()

    def test_files_that_may_still_change_are_read_again(self, tmp_path, format_, folder):
        access = DataAccess(cache=TokenCache(tmp_path / "cache"))
        paths = {load(format_, folder, access=access).examples.stored[0].entry.path for _ in range(2)}
        assert len(paths) == 2


class TestAugmentation:
    def test_it_is_a_function_of_seed_epoch_and_index(self, format_, folder):
        examples = load(format_, folder, crop=0.3, flip=True).examples
        alone = examples.train_batch(np.array([24 + 7]), CPU)[0][0]
        assert torch.equal(examples.train_batch(np.array([3, 24 + 7, 9]), CPU)[0][1], alone)
        assert not torch.equal(examples.train_batch(np.array([7]), CPU)[0][0], alone)
        again, other = (load(format_, folder, crop=0.3, flip=True, seed=seed).examples for seed in (3, 4))
        assert torch.equal(again.train_batch(np.array([24 + 7]), CPU)[0][0], alone)
        assert not torch.equal(other.train_batch(np.array([24 + 7]), CPU)[0][0], alone)

    def test_held_out_images_are_not_changed(self, format_, folder):
        plain, changed = (load(format_, folder, eval_fraction=0.25, flip=flip).examples for flip in (False, True))
        assert torch.equal(plain.held_out_batch(np.arange(6), CPU)[0], changed.held_out_batch(np.arange(6), CPU)[0])

    def test_parts_have_the_requested_area_and_shape(self):
        ramp = Image.fromarray(np.arange(200, dtype=np.uint8)[None].repeat(100, axis=0))
        widths = []
        for index in range(200):
            part = Augmentation(0.25, flip=False).apply(ramp, (200, 1), generator(0, 0, index))
            left, right = part.getpixel((0, 0)), part.getpixel((199, 0))
            widths.append(right - left + 1)
        assert min(widths) >= 60
        assert max(widths) <= 134
        assert len(set(widths)) > 30

    def test_long_image_has_parts_too(self):
        image = Image.new("RGB", (300, 2))
        assert Augmentation(0.9, flip=False).apply(image, (8, 8), generator(0, 0, 0)).size == (8, 8)

    def test_half_of_the_images_are_mirrored(self):
        image = Image.fromarray(np.array([[0, 255]], dtype=np.uint8))
        mirrored = [
            Augmentation(None, flip=True).apply(image, (2, 1), generator(0, epoch, 5)).getpixel((0, 0)) == 255
            for epoch in range(200)
        ]
        assert 70 < sum(mirrored) < 130

    def test_numbers_of_examples_contain_the_epoch(self):
        order = NumberedByEpoch(WholePass(5, seed=1))
        assert sorted(order.of_epoch(0)) == list(range(5))
        assert sorted(order.of_epoch(3)) == list(range(15, 20))
        assert (order.of_epoch(3) - 15).tolist() == WholePass(5, seed=1).of_epoch(3).tolist()


def test_processor_of_varying_shapes_is_refused():
    class Processor:
        def __call__(self, images, **options):
            return {"pixel_values": [np.zeros((3, images[0].height, 4))]}

    with pytest.raises(RefusedError, match="arrays of different shapes"):
        pixel_format(Processor(), "model.path")
