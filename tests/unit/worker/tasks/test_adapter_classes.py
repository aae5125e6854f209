"""The outputs of a continued adapter's head keep their classes, or the run is refused."""

import json

import pytest

from tests.support import hf
from trainyard.contract.allowed_roots import UNRESTRICTED_ROOTS
from trainyard.contract.spec.sections import HfModel
from trainyard.contract.spec.text_data import TextFiles
from worker.core.errors import RefusedError
from worker.tasks.adapter_classes import check_classes, known_classes
from worker.tasks.sequence_classification import build_classification

ORDER = ["so so", "good", "bad"]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return HfModel(path=str(hf.save_llama(tmp_path_factory.mktemp("base") / "llama")))


def classes_of(tmp_path, model, labels, stated=None, adapter=True):
    (tmp_path / "adapter").mkdir()
    if stated is not None:
        (tmp_path / "adapter" / "classes.json").write_text(json.dumps(stated))
    lines = [{"text": f"text {number}", "label": label} for number, label in enumerate(labels)]
    data = TextFiles(path=str(hf.write_lines(tmp_path / "lines", lines)), max_length=16, format="labelled_text")
    folder = str(tmp_path / "adapter") if adapter else None
    return list(build_classification(model, data, adapter=folder).classes)


def test_stated_names_give_the_order(tmp_path, model):
    assert classes_of(tmp_path, model, ["bad", "good", "so so"], ORDER) == ORDER


def test_stated_names_without_an_example_remain(tmp_path, model):
    assert classes_of(tmp_path, model, ["bad", "good"], ORDER) == ORDER


def test_new_adapters_have_the_classes_of_the_data(tmp_path, model):
    assert classes_of(tmp_path, model, ["bad", "good", "so so"], ORDER, adapter=False) == ["bad", "good", "so so"]


def test_numbers_need_no_names(tmp_path, model):
    assert classes_of(tmp_path, model, [2, 0, 1, 10, 3, 4, 5, 6, 7, 8, 9]) == [str(n) for n in range(11)]


@pytest.mark.parametrize("stated", [None, ["good", "bad"]])
def test_other_or_unknown_names_are_refused_with_the_remedy(tmp_path, model, stated):
    with pytest.raises(
        RefusedError, match=r"^lora\.adapter: the head of .* is not known to have the 3 classes"
    ) as refused:
        classes_of(tmp_path, model, ["bad", "good", "so so"], stated)
    assert "to classes.json in that folder" in refused.value.hint


def test_names_of_the_base_are_those_of_its_adapter(tmp_path):
    assert known_classes(("b", "a"), str(tmp_path), UNRESTRICTED_ROOTS) == ("b", "a")
    check_classes(str(tmp_path), ("b", "a"), ("b", "a"))
    with pytest.raises(RefusedError):
        check_classes(str(tmp_path), ("b", "a"), ("a", "b"))


@pytest.mark.parametrize("text", ["{}", "[1]", "[", "3"])
def test_damaged_names_are_refused(tmp_path, text):
    (tmp_path / "classes.json").write_text(text)
    with pytest.raises(RefusedError, match="no JSON list of names"):
        known_classes((), str(tmp_path), UNRESTRICTED_ROOTS)
