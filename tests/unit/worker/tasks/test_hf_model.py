"""Folders of models whose weights cannot be trained are refused."""

import json

import pytest

from tests.support import hf
from worker.core.errors import RefusedError
from worker.tasks.hf_model import HfFolder


@pytest.mark.parametrize("method", ["gptq", "awq", "bitsandbytes", "of a later release"])
def test_quantized_weights_are_refused_with_the_remedy(tmp_path, method):
    hf.save_llama(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    stated = {"quant_method": method, "bits": 4, "load_in_4bit": True}
    (tmp_path / "config.json").write_text(json.dumps({**config, "quantization_config": stated}))
    with pytest.raises(RefusedError, match=r"^model\.path: ") as refused:
        HfFolder(str(tmp_path)).load(packed=False)
    assert "`lora.base_dtype` can hold it in 8 or 4 bits" in refused.value.hint
