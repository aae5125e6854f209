"""Which checkpoints stay."""

from collections.abc import Sequence

from trainyard.contract.spec.sections import Checkpoint
from trainyard.contract.wire.manifest import Manifest


def removable(manifests: Sequence[Manifest], policy: Checkpoint) -> list[int]:
    """Pure: the steps that neither `keep_last` nor `keep_best` holds. A NaN is never the best."""
    by_step = sorted(manifests, key=lambda manifest: manifest.step)
    kept = {manifest.step for manifest in by_step[-policy.keep_last :]}
    if policy.keep_best:
        metric = policy.keep_best.metric
        sign = 1.0 if policy.keep_best.mode == "max" else -1.0
        scored = [
            (sign * value, manifest.step)
            for manifest in by_step
            if (value := manifest.metrics.get(metric)) is not None and value == value
        ]
        if scored:
            kept.add(max(scored)[1])
    return [manifest.step for manifest in by_step if manifest.step not in kept]
