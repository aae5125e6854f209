"""The soft limits of ranks."""

import json
import subprocess
import sys
from resource import RLIM_INFINITY, RLIMIT_CORE, RLIMIT_MEMLOCK, RLIMIT_NOFILE, RLIMIT_NPROC, RLIMIT_STACK

import pytest

from worker.launcher.resource_limits import raised_stack

MIB = 1024 * 1024
LIMITS = (RLIMIT_NOFILE, RLIMIT_NPROC, RLIMIT_MEMLOCK, RLIMIT_STACK, RLIMIT_CORE)
PROGRAM = f"""
import json, resource
from worker.launcher.resource_limits import raise_soft_limits

for limit, soft in zip({LIMITS}, (256, 50, 4096, 1024 * 1024, 0)):
    hard = 16 * 1024 * 1024 if limit == {RLIMIT_STACK} else resource.getrlimit(limit)[1]
    resource.setrlimit(limit, (soft, hard))
raise_soft_limits()
print(json.dumps([resource.getrlimit(limit) for limit in {LIMITS}]))
"""


def test_soft_limits_are_raised_to_the_hard_ones_but_for_core_files() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True, timeout=60)
    *raised, core = json.loads(done.stdout)
    assert [soft for soft, _ in raised] == [hard for _, hard in raised]
    assert raised[3] == [16 * MIB, 16 * MIB]
    assert core[0] == 0


@pytest.mark.parametrize(
    ("soft", "hard", "expected"),
    [
        (MIB, 64 * MIB, 64 * MIB),
        (MIB, RLIM_INFINITY, 8 * MIB),
        (10 * MIB, RLIM_INFINITY, 10 * MIB),
        (RLIM_INFINITY, RLIM_INFINITY, RLIM_INFINITY),
    ],
)
def test_threads_get_no_smaller_stacks(soft: int, hard: int, expected: int) -> None:
    assert raised_stack(soft, hard) == expected
