"""Which commands `trainyard run` understands."""

import pytest

from trainyard.client.errors import InvalidRequestError
from trainyard.client.program_command import Program, parse_command

PROGRAM = ("train.py", "--lr", "1")

OPTIMIZED = {"PYTHONOPTIMIZE": "1", "PYTHONWARNINGS": "ignore,error::UserWarning"}
SMALLEST = {"PYTHONOPTIMIZE": "2", "PYTHONDONTWRITEBYTECODE": "1"}


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("python train.py --lr 1", Program(PROGRAM)),
        ("python3.12 -u ./train.py --lr 1", Program(PROGRAM)),
        ("/opt/bin/python3 -m pkg.train -m x", Program(("-m", "pkg.train", "-m", "x"))),
        ("python -O -W ignore -Werror::UserWarning train.py --lr 1", Program(PROGRAM, variables=OPTIMIZED)),
        ("python -OO -B -m pkg.train", Program(("-m", "pkg.train"), variables=SMALLEST)),
        ("train.py --lr 1", Program(PROGRAM)),
        ("torchrun train.py --lr 1", Program(PROGRAM)),
        ("torchrun --nproc_per_node 4 --nnodes=2 train.py --lr 1", Program(PROGRAM, 8, 2)),
        ("torchrun --standalone --nproc-per-node=gpu -m pkg.train", Program(("-m", "pkg.train"))),
        ("torchrun --rdzv_backend c10d --rdzv_endpoint h:1 --nproc_per_node=2 train.py --lr 1", Program(PROGRAM, 2)),
        ("accelerate launch --num_processes 2 --multi_gpu train.py --lr 1", Program(PROGRAM, 2)),
        (
            "accelerate launch --mixed_precision bf16 --cpu train.py --lr 1",
            Program(PROGRAM, None, None, {"ACCELERATE_MIXED_PRECISION": "bf16", "ACCELERATE_USE_CPU": "true"}),
        ),
        ("deepspeed --num_gpus 2 train.py --lr 1", Program(PROGRAM, 2)),
        ("deepspeed train.py --deepspeed ds.json", Program(("train.py", "--deepspeed", "ds.json"))),
    ],
)
def test_command_is_translated(command: str, expected: Program) -> None:
    assert parse_command(command.split()) == expected


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("", "name a program after `--`"),
        ("bash train.sh", "'bash' cannot be started on every rank"),
        ("./train.sh", "cannot be started on every rank"),
        ("python", "it has no program"),
        ("python -m", "it has no program|not supported"),
        ("python -W", "it has no program"),
        ("python -X dev train.py", "'-X' is not supported"),
        ("python -c pass", "'-c' is not supported"),
        ("python -m torch.distributed.run train.py", "Trainyard's launcher starts the ranks"),
        ("torchrun", "it has no program"),
        ("torchrun --nproc_per_node", "has no value"),
        ("torchrun --nnodes 1:4 train.py", "'1:4' is not a fixed number"),
        ("torchrun --max-restarts 3 train.py", "--max-restarts is not supported: use --retries"),
        ("torchrun --no-python ./a.out", "must be one of Python"),
        ("accelerate launch --config_file a.yaml train.py", "ACCELERATE_"),
        ("accelerate test", "'accelerate' cannot be started"),
        ("deepspeed --hostfile h train.py", "Slurm chooses the nodes"),
    ],
)
def test_other_commands_are_refused_with_the_reason(command: str, message: str) -> None:
    with pytest.raises(InvalidRequestError, match=message):
        parse_command(command.split())
