"""The worker has the data type of each precision that is not fp32."""

import torch

from trainyard.contract.kinds.precisions import PRECISIONS
from worker.engine.precision import COMPUTE_DTYPE


def test_data_types_are_those_of_the_records() -> None:
    assert list(COMPUTE_DTYPE) == [kind.name for kind in PRECISIONS.values() if kind.is_half]
    in_bf16 = [name for name, dtype in COMPUTE_DTYPE.items() if dtype == torch.bfloat16]
    assert in_bf16 == [kind.name for kind in PRECISIONS.values() if kind.computes_in_bf16]
