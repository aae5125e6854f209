"""Large logits are computed in chunks, under every way to hold the head's weight."""

import pytest
import torch

from tests.integration.worker.harness import run_layout
from tests.integration.worker.parity_matrix import ADAMW, VARIANTS, gpt

pytestmark = pytest.mark.slow

LAYOUTS = ("ddp", "zero1", "zero2", "layer")


def case(layout, *, tied, **options):
    base = gpt(steps=3, batch={"size": 8}, optimizer=ADAMW | {"clip_norm": 1.0})
    return {"spec": base | {"model": base["model"] | {"tied": tied}} | layout, **options}


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    folder = tmp_path_factory.mktemp("chunks")
    alone = {f"{tied}": case({"strategy": "single"}, tied=tied) for tied in (True, False)}
    together = {
        f"{name}-{tied}": case(VARIANTS[name], tied=tied, max_logits=5 * 256)
        for name in LAYOUTS
        for tied in (True, False)
    }
    # In bf16 the head has another way, in chunks of 40 tokens.
    narrow = {"precision": "bf16"}
    alone |= {f"{tied}-bf16": case({"strategy": "single"} | narrow, tied=tied) for tied in (True, False)}
    together |= {
        f"{name}-{tied}-bf16": case(VARIANTS[name] | narrow, tied=tied, max_logits=5 * 256)
        for name in LAYOUTS
        for tied in (True, False)
    }
    return run_layout(1, alone, folder / "1")[0], run_layout(2, together, folder / "2")[0]


@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(("precision", "tolerance"), [("", 2e-5), ("-bf16", 5e-3)], ids=["fp32", "bf16"])
def test_losses_and_norms_equal_those_of_whole_logits(results, layout, tied, precision, tolerance):
    alone = results[0][f"{tied}{precision}"]["series"]
    together = results[1][f"{layout}-{tied}{precision}"]["series"]
    for name in ("train/loss", "train/grad_norm"):
        expected = torch.tensor([float(value) for value in alone[name].values()])
        assert len(expected) == 3
        actual = torch.tensor([float(value) for value in together[name].values()])
        torch.testing.assert_close(actual, expected, rtol=tolerance, atol=0.0)
