"""The planner's estimates equal the peaks that were measured on a GPU, and what is to be measured fits on it."""

from pathlib import Path
from typing import Any, cast

import pytest

from bench.gpu import memory
from bench.gpu.cases import Tools
from bench.gpu.records import Record, ResultFile
from bench.gpu.shapes import SHAPES
from bench.gpu.speed import RECIPES, Recipe, _measure, document_of
from bench.gpu.training import GpuEngine
from service.plugins.planner.builtin_models import structure_of
from service.plugins.planner.fit import Estimate, FitEstimator
from trainyard.contract.sizes import GIB
from trainyard.contract.spec.decoders import LlamaModel
from trainyard.contract.spec.resolve import resolve
from trainyard.contract.spec.site import Site
from trainyard.contract.spec.training_spec import parse_spec

RESULTS = ResultFile(Path(__file__).parents[3] / "bench" / "results" / "nvidia-h200.jsonl")
MEASURED = {
    record.case.removeprefix("1B, "): record.values["measured GiB"]
    for record in RESULTS.records()
    if record.phase == "memory"
}


def peak_gib(document: dict[str, Any]) -> float:
    spec = resolve(parse_spec({"gpus": 1, **document}), Site("cuda", emulates_gpus=True))
    assert isinstance(spec.model, LlamaModel)
    structure = structure_of(spec.model)
    assert structure is not None
    estimate = FitEstimator(structure).estimate(spec)
    assert isinstance(estimate, Estimate)
    return estimate.peak / GIB


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda recipe: recipe.name)
def test_each_recipe_for_speed_fits_on_the_measured_gpu(recipe: Recipe, tmp_path: Path) -> None:
    memory = float(RESULTS.machine()["memory"].split()[0])
    tools = Tools(cast(GpuEngine, None), tmp_path, dry=False)
    assert peak_gib(document_of(recipe, tools)) < 0.9 * memory


@pytest.mark.parametrize(
    ("earlier", "speed", "verdict"), [(None, 1000.0, None), (100.0, 80.0, True), (100.0, 70.0, False)]
)
def test_a_comparison_without_its_other_side_has_no_verdict(
    earlier: float | None, speed: float, verdict: bool | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bench.gpu.speed._train", lambda recipe, tools: {"tokens/s": speed})
    records = [] if earlier is None else [Record("speed", "8B, LoRA", "passed", {"tokens/s": earlier})]
    tools = Tools(cast(GpuEngine, None), tmp_path, dry=False, records=records)
    assert _measure(RECIPES[-1], tools).passed is verdict


@pytest.mark.parametrize("variant", MEASURED)
def test_estimate_is_within_the_tolerance_of_the_measured_peak(variant: str) -> None:
    document = SHAPES[0].document(dry=False, steps=3, **memory._VARIANTS[variant])
    assert peak_gib(document) == pytest.approx(MEASURED[variant], rel=memory.TOLERANCE)


def test_ten_variants_were_measured() -> None:
    assert len(MEASURED) == 10
