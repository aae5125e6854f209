"""The examples in docs/tasks.md work."""

import re
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml

from trainyard.contract.spec.resolve import resolve
from trainyard.contract.spec.site import Site
from trainyard.contract.spec.training_spec import parse_spec
from worker.tasks.select import select_task

PAGE = (Path(__file__).parents[3] / "docs" / "tasks.md").read_text()
SPECS = [yaml.safe_load(text) for text in re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)]


@pytest.mark.parametrize("document", SPECS, ids=lambda document: document["task"])
def test_each_spec_is_accepted(document):
    assert resolve(parse_spec(document), Site())


def test_custom_task_example_is_valid(tmp_path, monkeypatch):
    (tmp_path / "my_task.py").write_text(re.search(r"```python\n(# my_task.py.*?)```", PAGE, re.DOTALL)[1])
    monkeypatch.syspath_prepend(tmp_path)
    task = select_task(resolve(parse_spec(SPECS[0]), Site()))
    sys.modules.pop("my_task")
    batch = task.examples.train_batch(np.arange(8), torch.device("cpu"))
    loss = task.loss_sum(task.build_model(), batch)
    assert loss.requires_grad
    assert loss.ndim == 0
