"""Where the programs for GPUs write their results."""

from pathlib import Path

import pytest

from bench.gpu.__main__ import default_output

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize(("dry", "folder"), [(True, "build/bench"), (False, "bench/results")])
def test_results_of_a_dry_run_are_not_part_of_the_repository(dry: bool, folder: str) -> None:
    path = default_output("NVIDIA H100 80GB HBM3", dry=dry)
    assert path == ROOT / folder / "nvidia-h100-80gb-hbm3.jsonl"
