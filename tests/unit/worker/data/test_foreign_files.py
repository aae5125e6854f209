"""Files that `datasets` wrote give the examples of the records that they were written from, whatever their kind."""

import numpy as np
import pytest

from tests.support import hf
from tests.support.images import SIZE, digits, encoded, save_vit
from trainyard.contract.spec.image_data import ImageFiles
from trainyard.contract.spec.text_data import TextFiles
from worker.core.errors import RefusedError
from worker.data.data_files import find_files
from worker.data.image_examples import load_images
from worker.data.image_pixels import pixel_format
from worker.data.labelled_texts import load_labelled
from worker.data.records import numbered_records
from worker.data.text_examples import DataAccess
from worker.data.text_pairs import load_pairs
from worker.tasks.hf_model import HfFolder


def call(name, **arguments):
    return {"type": "function", "function": {"name": name, "arguments": arguments}}


def tool(name, **properties):
    parameters = {"type": "object", "properties": properties}
    return {"type": "function", "function": {"name": name, "parameters": parameters}}


TOOL_CALLS = [
    {
        "messages": [
            {"role": "user", "content": f"{number}?"},
            {
                "role": "assistant",
                "tool_calls": [call("add", a=number) if number % 2 else call("say", text="x", to=[1])],
            },
            {"role": "tool", "content": "{}", "name": "add"},
            {"role": "assistant", "content": "done"},
        ],
        "tools": [tool("add", a={"type": "integer"}) if number % 2 else tool("say", text={"type": "string"})],
    }
    for number in range(6)
]
RECORDS = {
    "texts": hf.texts(8),
    "completions": hf.completions(8),
    "chats": hf.chats(6),
    "preferences": hf.preferences(6),
    "chat_preferences": hf.chat_preferences(6),
    "labelled_answers": hf.labelled_answers(6),
    "tool_calls": TOOL_CALLS,
}
KINDS = {"jsonl": "to_json", "parquet": "to_parquet", "dataset": "save_to_disk"}


@pytest.fixture(scope="module", autouse=True)
def datasets():
    import datasets

    datasets.disable_progress_bars()
    return datasets


def written(path, data, kind):
    getattr(data, KINDS[kind])(str(path))
    return path


def read(path, kind, fields):
    source = TextFiles(source=kind, path=str(path))
    return [record for _, record in numbered_records(find_files("data.path", source, DataAccess().roots), fields)]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("records", RECORDS)
@pytest.mark.parametrize("mixed", [None, "use_json"])
def test_rows_are_those_that_datasets_reads(tmp_path, datasets, records, kind, mixed):
    data = datasets.Dataset.from_list(RECORDS[records], on_mixed_types=mixed)
    rows = read(written(tmp_path / "data", data, kind), kind, frozenset(data.column_names))
    # A table has every field of a structure in each row, with null where the record had none.
    assert without_nulls(rows) == without_nulls(list(data))
    assert mixed is None or without_nulls(rows) == RECORDS[records]


def without_nulls(value):
    if isinstance(value, dict):
        return {key: without_nulls(inner) for key, inner in value.items() if inner is not None}
    return [without_nulls(inner) for inner in value] if isinstance(value, list) else value


@pytest.mark.parametrize("kind", ["parquet", "dataset"])
class TestLabels:
    NAMES = ("bad", "so so", "good")

    def load(self, path, kind, tokenizer, **options):
        data = TextFiles(source=kind, path=str(path), format="labelled_text", **options)
        return load_labelled(data, tokenizer, 32)

    def data(self, datasets, numbers, column="label"):
        features = datasets.Features({"text": datasets.Value("string"), column: datasets.ClassLabel(names=self.NAMES)})
        texts = [f"text {number}" for number in range(len(numbers))]
        return datasets.Dataset.from_dict({"text": texts, column: numbers}, features=features)

    def test_numbers_have_the_stored_names(self, tmp_path, datasets, tokenizer, kind):
        path = written(tmp_path / "data", self.data(datasets, [0, 2, 1, 2]), kind)
        files = self.load(path, kind, tokenizer)
        assert [files.classes[number] for number in files.examples.labels] == ["bad", "good", "so so", "good"]

    def test_column_of_another_name(self, tmp_path, datasets, tokenizer, kind):
        path = written(tmp_path / "data", self.data(datasets, [0, 2], "mood"), kind)
        assert set(self.load(path, kind, tokenizer, columns={"label": "mood"}).classes) == {"bad", "good"}

    def test_known_classes_keep_their_order(self, tmp_path, datasets, tokenizer, kind):
        path = written(tmp_path / "data", self.data(datasets, [0, 2, 1]), kind)
        data = TextFiles(source=kind, path=str(path), format="labelled_text")
        assert load_labelled(data, tokenizer, 32, self.NAMES).classes == self.NAMES

    def test_absent_label_is_no_class(self, tmp_path, datasets, tokenizer, kind):
        path = written(tmp_path / "data", self.data(datasets, [0, 2, -1]), kind)
        with pytest.raises(RefusedError, match="row 3"):
            self.load(path, kind, tokenizer)


@pytest.fixture(scope="module")
def tokenizer():
    return hf.train_tokenizer(["some text of it"] * 9)


@pytest.mark.parametrize("kind", KINDS)
def test_pairs_of_texts(tmp_path, datasets, tokenizer, kind):
    rows = [{"anchor": f"number {n}", "positive": f"it is {n * n}", "negative": None} for n in range(6)]
    data = datasets.Dataset.from_list(
        rows, features=datasets.Features(dict.fromkeys(rows[0], datasets.Value("string")))
    )
    files = TextFiles(source=kind, path=str(written(tmp_path / "data", data, kind)), format="text_pair")
    expected = TextFiles(path=str(hf.write_lines(tmp_path / "lines", rows)), format="text_pair")
    one, other = (load_pairs(each, tokenizer, 32, 2, 0, DataAccess())[0] for each in (files, expected))
    for first, second in zip(one.digest_arrays(), other.digest_arrays(), strict=True):
        assert np.array_equal(first, second)


@pytest.fixture(scope="module")
def format_(tmp_path_factory):
    return pixel_format(HfFolder(str(save_vit(tmp_path_factory.mktemp("model")))).image_processor, "model.path")


class TestImages:
    def folder(self, folder):
        for number, (content, label) in enumerate(digits(0, 12)):
            (folder / label).mkdir(parents=True, exist_ok=True)
            (folder / label / f"{number}.png").write_bytes(content)
        return folder

    def read(self, datasets, folder):
        """Return images as `datasets` reads a folder of classes."""
        cache = str(folder.with_name("cache"))
        return datasets.load_dataset("imagefolder", data_dir=str(folder), split="train", cache_dir=cache)

    def load(self, path, format_):
        return load_images(ImageFiles(path=str(path)), format_, 3, (), DataAccess()).examples

    def test_saved_data_set_has_the_images_and_names_of_the_folder(self, tmp_path, datasets, format_):
        folder = self.folder(tmp_path / "folder")
        self.read(datasets, folder).save_to_disk(tmp_path / "data")
        one, other = self.load(folder, format_), self.load(tmp_path / "data", format_)
        assert one.classes == other.classes
        for first, second in zip(one.digest_arrays(), other.digest_arrays(), strict=True):
            assert np.array_equal(first, second)

    def test_table_of_paths_is_refused_with_a_remedy(self, tmp_path, datasets, format_):
        self.read(datasets, self.folder(tmp_path / "folder")).to_parquet(tmp_path / "data")
        with pytest.raises(RefusedError, match="only the path of an image in column `image`; save_to_disk"):
            self.load(tmp_path / "data", format_)

    def test_saved_splits_are_refused_with_their_names(self, tmp_path, datasets, format_):
        from PIL import Image

        picture = {"bytes": encoded(Image.new("RGB", (SIZE, SIZE))), "path": None}
        features = datasets.Features({"image": datasets.Image(), "label": datasets.Value("string")})
        one = datasets.Dataset.from_dict({"image": [picture], "label": ["a"]}, features=features)
        datasets.DatasetDict({"train": one, "test": one}).save_to_disk(tmp_path / "data")
        with pytest.raises(RefusedError, match="several splits: test, train"):
            self.load(tmp_path / "data", format_)
