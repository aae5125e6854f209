"""Which commands `trainyard run` understands, and what it starts for them."""

import shlex
from pathlib import Path

import pytest

from trainyard.client.errors import InvalidRequestError
from trainyard.client.program_command import Program, parse_command, started_file, with_config
from trainyard.client.program_notebooks import NBCONVERT, NOTEBOOK, output_notebooks

PROGRAM = ("train.py", "--lr", "1")

OPTIMIZED = {"PYTHONOPTIMIZE": "1", "PYTHONWARNINGS": "ignore,error::UserWarning"}
SMALLEST = {"PYTHONOPTIMIZE": "2", "PYTHONDONTWRITEBYTECODE": "1"}
BF16_ON_CPU = {"ACCELERATE_MIXED_PRECISION": "bf16", "ACCELERATE_USE_CPU": "true"}


def ranks(*argv: str, count: int | None = None, nodes: int | None = None, **more: object) -> Program:
    """A program whose launcher ours replaces."""
    return Program(argv or PROGRAM, count, nodes, distributed=True, **more)  # type: ignore[arg-type]


def once(command: str, count: int | None = None, **more: object) -> Program:
    """A command that is started as it is, once."""
    return Program(tuple(shlex.split(command)), count, is_command=True, per="job", **more)  # type: ignore[arg-type]


def each(command: str, **more: object) -> Program:
    """A command that is started for each GPU."""
    return Program(tuple(shlex.split(command)), is_command=True, **more)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("python train.py --lr 1", Program(PROGRAM)),
        ("python3.12 -u ./train.py --lr 1", Program(PROGRAM)),
        ("/opt/bin/python3 -m pkg.train -m x", Program(("-m", "pkg.train", "-m", "x"))),
        ("python -O -W ignore -Werror::UserWarning train.py --lr 1", Program(PROGRAM, variables=OPTIMIZED)),
        ("python -OO -B -m pkg.train", Program(("-m", "pkg.train"), variables=SMALLEST)),
        ("train.py --lr 1", Program(PROGRAM)),
        ("python -X dev train.py", each("python -X dev train.py")),
        ("python3 -c 'print(1)' a", each("python -c 'print(1)' a")),
        ("A=1 B=b=c python train.py --lr 1", Program(PROGRAM, variables={"A": "1", "B": "b=c"})),
        ("env A=1 python train.py --lr 1", Program(PROGRAM, variables={"A": "1"})),
    ],
)
def test_python_program_is_started_for_each_gpu(command: str, expected: Program) -> None:
    assert parse_command(shlex.split(command)) == expected


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("torchrun train.py --lr 1", ranks()),
        ("torchrun --nproc_per_node 4 --nnodes=2 train.py --lr 1", ranks(count=8, nodes=2)),
        ("torchrun --standalone --nproc-per-node=gpu -m pkg.train", ranks("-m", "pkg.train", counts_gpus=True)),
        ("torchrun --nproc_per_node auto train.py --lr 1", ranks(counts_gpus=True)),
        ("torchrun --rdzv_backend c10d --rdzv_endpoint h:1 --nproc_per_node=2 train.py --lr 1", ranks(count=2)),
        ("torchrun --log-dir x -r 3 -t 3 --role r train.py --lr 1", ranks()),
        ("torchrun --no-python --nproc-per-node 2 ./a.out x", ranks("./a.out", "x", count=2, is_command=True)),
        ("python -m torch.distributed.run --nproc_per_node=2 train.py --lr 1", ranks(count=2)),
        ("python -m torch.distributed.launch --use_env --nproc_per_node=2 train.py --lr 1", ranks(count=2)),
        ("python -m accelerate.commands.launch --num_processes 2 train.py --lr 1", ranks(count=2)),
        ("accelerate launch --num_processes 2 --multi_gpu train.py --lr 1", ranks(count=2)),
        ("accelerate launch --mixed_precision bf16 --cpu train.py --lr 1", ranks(variables=BF16_ON_CPU)),
        ("deepspeed --num_gpus 2 --no_local_rank train.py --lr 1", ranks(count=2)),
        (
            "uv run torchrun --nproc_per_node 2 train.py",
            ranks(*["uv", "run", "python", "train.py"], count=2, is_command=True),
        ),
        ("conda run -n e torchrun -m pkg", ranks(*["conda", "run", "-n", "e", "python", "-m", "pkg"], is_command=True)),
    ],
)
def test_known_launcher_is_replaced(command: str, expected: Program) -> None:
    assert parse_command(shlex.split(command)) == expected


@pytest.mark.parametrize(
    ("command", "start"),
    [
        (
            "python -m torch.distributed.launch --nproc_per_node=2 train.py --x",
            'python "$program" --local-rank="$LOCAL_RANK"',
        ),
        ("deepspeed --num_gpus 2 train.py --x", 'python "$program" --local_rank="$LOCAL_RANK"'),
        ("deepspeed --num_gpus 2 --module train.py --x", 'python -m "$program" --local_rank="$LOCAL_RANK"'),
    ],
)
def test_launchers_that_pass_the_rank_as_an_argument_still_do(command: str, start: str) -> None:
    program = parse_command(shlex.split(command))
    assert (program.argv[:2], program.argv[3:]) == (("sh", "-c"), ("sh", "train.py", "--x"))
    assert start in program.argv[2]
    assert (program.ranks, program.is_command, program.per, program.distributed) == (2, True, "rank", True)


@pytest.mark.parametrize(
    "command",
    [
        *("bash run.sh 1", "./run.sh", "make train", "./a.out", "/opt/x/prog", "bash -c 'python a.py && python b.py'"),
        *("axolotl train c.yml", "llamafactory-cli train c.yaml", "yolo train data=c", "papermill in.ipynb out.ipynb"),
        *("jupyter nbconvert --to html nb.ipynb", "wandb agent e/p/id", "Rscript train.R", "accelerate test"),
        *(
            "poetry run train-cli",
            "pixi run train",
            "env -i A=1 ./a.out",
            "uv run mypy .",
            "conda run -n python3 tool cd",
        ),
        *("uv run tool train.py", "uv run --isolated tool train.py", "nohup bash run.sh train.py", "nohup", "uv run"),
        *("timeout -k 5 3h bash run.sh python train.py", "uv run --with torch tool --engine accelerate launch"),
    ],
)
def test_any_other_command_is_started_once(command: str) -> None:
    assert parse_command(shlex.split(command)) == once(command)


@pytest.mark.parametrize(
    "command",
    [
        *("uv run train.py --lr 1", "uv run --with rich python train.py", "uv run --python python3.12 train.py"),
        *("poetry run python -m pkg.train", "conda run -n env python train.py", "env -u X python train.py"),
        *("nohup python train.py", "timeout 3h python train.py", "nsys profile -o x python train.py"),
        *("uv run -m pkg.train", "uv run -q --with=rich -- python train.py", "nohup uv run train.py"),
        *(
            "taskset -c 0-3 python train.py",
            "numactl -N 0 -m 0 python -u train.py",
            "nice -n 10 env -u X python train.py",
        ),
    ],
)
def test_wrapped_python_program_is_started_for_each_gpu(command: str) -> None:
    assert parse_command(shlex.split(command)) == each(command)


@pytest.mark.parametrize(
    ("command", "count"),
    [
        ("accelerate launch --use_fsdp --num_processes 4 train.py", 4),
        ("trl sft --model_name_or_path x --num_processes 2", 2),
        ("tune run --nproc_per_node=2 lora_finetune_distributed --config x.yaml", 2),
        ("accelerate launch --use_deepspeed train.py", None),
        ("head -n 2 file", None),
    ],
)
def test_processes_of_a_command_are_read_from_its_options(command: str, count: int | None) -> None:
    program = parse_command(shlex.split(command))
    assert (program.argv, program.ranks, program.per) == (tuple(shlex.split(command)), count, "job")
    assert program.counts_gpus == (command.startswith("accelerate") and count is None)


def test_mpi_starts_its_processes_on_one_node_whatever_slurm_allocated() -> None:
    program = parse_command(["mpirun", "-np", "4", "./a.out"])
    assert (program.argv[0], program.argv[5:], program.ranks) == ("env", ("mpirun", "-np", "4", "./a.out"), 4)
    assert {"OMPI_MCA_rmaps_base_oversubscribe=true", "OMPI_MCA_ras=^slurm"} < set(program.argv)


def test_variables_that_no_spec_can_have_are_set_by_env() -> None:
    program = parse_command(["a_b=1", "C=2", "python", "train.py"])
    assert (program.argv, program.variables) == (("env", "a_b=1", "python", "train.py"), {"C": "2"})


@pytest.mark.parametrize(
    "command",
    [
        "PYTHONPATH=src LD_LIBRARY_PATH=/x python train.py",
        "/usr/bin/env PYTHONPATH=src LD_LIBRARY_PATH=/x python train.py",
    ],
)
def test_variables_that_select_code_are_for_the_program(command: str) -> None:
    variables = {"PYTHONPATH": "src", "LD_LIBRARY_PATH": "/x"}
    assert parse_command(shlex.split(command)) == Program(("train.py",), variables=variables)


@pytest.mark.parametrize(
    ("command", "argv"),
    [
        ("nohup env PYTHONPATH=src python train.py", "nohup python train.py"),
        ("nice -n 10 env -u X PYTHONPATH=src bash run.sh", "nice -n 10 env -u X bash run.sh"),
        ("env -u X PYTHONPATH=src torchrun train.py", "env -u X python train.py"),
        ("uv run env PYTHONPATH=src python -O train.py", "uv run python -O train.py"),
    ],
)
def test_variables_inside_of_a_wrapper_are_those_of_the_program(command: str, argv: str) -> None:
    program = parse_command(shlex.split(command))
    assert (program.argv, program.variables) == (tuple(shlex.split(argv)), {"PYTHONPATH": "src"})


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("CUDA_VISIBLE_DEVICES=0,1 python train.py", "^CUDA_VISIBLE_DEVICES is set to the GPUs .*use --gpus$"),
        ("env MASTER_PORT=1 python train.py", "^MASTER_PORT is set by the launcher .*use --gpus and --nodes$"),
        ("nohup env -u X RANK=0 python train.py", "^RANK is set by the launcher"),
        ("SLURM_NTASKS=2 ./a.out", "^SLURM_NTASKS is set by the scheduler; use --partition"),
        ("TRAINYARD_RESUMED=1 ./a.out", "^TRAINYARD_RESUMED is set by the service"),
        ("env -i RANK=0 python train.py", "^RANK is set by the launcher"),
    ],
)
def test_variables_of_the_allocation_are_refused_with_the_option(command: str, message: str) -> None:
    with pytest.raises(InvalidRequestError, match=message):
        parse_command(shlex.split(command))


def test_a_long_value_is_set_by_env() -> None:
    program = parse_command([f"PATH={'x' * 600}", "make"])
    assert (program.argv, program.variables) == (("env", f"PATH={'x' * 600}", "make"), {})


def test_notebook_is_executed_by_the_python_of_the_program() -> None:
    program = parse_command(["nb.ipynb", "--ExecutePreprocessor.timeout=60"])
    assert program == Program(("python", "-c", NOTEBOOK, *program.argv[3:]), is_command=True, per="job")
    assert program.argv[3:] == ("nb.ipynb", "--ExecutePreprocessor.timeout=60")
    compile(NOTEBOOK, "notebook", "exec")


@pytest.mark.parametrize(
    "command",
    [
        "jupyter nbconvert --to notebook --execute nb.ipynb",
        "/envs/torch/bin/jupyter nbconvert --execute --output x.ipynb nb.ipynb",
        "jupyter-nbconvert --inplace nb.ipynb --execute",
        "python -m nbconvert --execute --output=x.ipynb nb.ipynb",
        "python3 -m jupyter nbconvert --execute nb.ipynb --to html",
    ],
)
def test_nbconvert_that_executes_saves_after_each_cell(command: str) -> None:
    parts = shlex.split(command)
    program = parse_command(parts)
    assert program == Program(("python", "-c", NBCONVERT, *parts), is_command=True, per="job")
    assert started_file(program.argv) == "nb.ipynb"
    compile(NBCONVERT, "notebook", "exec")


def test_nbconvert_behind_a_wrapper_saves_after_each_cell() -> None:
    command = ["uv", "run", "jupyter", "nbconvert", "--execute", "nb.ipynb"]
    assert parse_command(command).argv == ("uv", "run", "python", "-c", NBCONVERT, *command[2:])


@pytest.mark.parametrize(
    ("command", "outputs"),
    [
        ("papermill in.ipynb out/b.ipynb -p lr 1", ["out/b.ipynb"]),
        ("uv run papermill -p lr 1 in.ipynb out.ipynb", ["out.ipynb"]),
        ("python -m papermill in.ipynb out.ipynb", ["out.ipynb"]),
        ("papermill in.ipynb /scratch/out.ipynb", []),
        ("papermill in.ipynb s3://a/out.ipynb", []),
        ("papermill in.ipynb ../out.ipynb", []),
        ("papermill in.ipynb", []),
        ("python train.py a.ipynb b.ipynb", []),
        ("bash -c 'papermill a.ipynb b.ipynb && python -m papermill -k x c.ipynb d.ipynb; ls'", ["b.ipynb", "d.ipynb"]),
    ],
)
def test_outputs_of_papermill_are_known(command: str, outputs: list[str]) -> None:
    assert output_notebooks(parse_command(shlex.split(command)).argv) == outputs


@pytest.mark.parametrize(
    ("text", "count"),
    [("num_processes: 4\n", 4), ("mixed_precision: bf16\n", None), ("[1", None), ("- 1", None)],
)
def test_processes_of_accelerate_are_read_from_its_file(tmp_path: Path, text: str, count: int | None) -> None:
    (tmp_path / "c.yaml").write_text(text)
    program = parse_command(["accelerate", "launch", "--config_file", "c.yaml", "train.py"])
    assert (with_config(program, tmp_path).ranks, with_config(program, tmp_path / "other").ranks) == (count, None)
    (tmp_path / "c.yaml").write_text("num_machines: 2\n")
    with pytest.raises(InvalidRequestError, match="several machines"):
        with_config(program, tmp_path)


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("", "name a program after `--`"),
        ("python", "it has no program"),
        ("python -m", "it has no program"),
        ("python -c", "it has no program"),
        ("python -W", "it has no program"),
        ("torchrun", "it has no program"),
        ("torchrun --nproc_per_node", "has no value"),
        ("torchrun --nnodes 1:4 train.py", "'1:4' is not a fixed number"),
        ("torchrun --max-restarts 3 train.py", "--max-restarts is not supported: use --retries"),
        ("torchrun --unknown train.py", "has no such option"),
        ("deepspeed --hostfile h train.py", "Slurm chooses the nodes"),
        ("cd x", "bash -c 'cd x'"),
        ("time python 'a train.py'", r"""use: trainyard run -- bash -c 'time python '"'"'a train.py'"'"''$"""),
        ("'python a.py && python b.py'", "trainyard run -- bash -c 'python a.py && python b.py'"),
        ("'python a.py --lr 1e-3'", "trainyard run -- python a.py --lr 1e-3$"),
        ("\"echo 'a b' > x\"", r"""bash -c 'echo '"'"'a b'"'"' > x'$"""),
    ],
)
def test_what_would_start_otherwise_is_refused_with_the_line_to_use(command: str, message: str) -> None:
    with pytest.raises(InvalidRequestError, match=message):
        parse_command(shlex.split(command))


@pytest.mark.parametrize(
    ("command", "instead"),
    [
        ("srun -n 2 python train.py --x 1", "`python train.py --x 1` with --gpus 2"),
        ("nohup srun -n4 -l -N 2 python train.py", "`python train.py` with --gpus 4 --nodes 2"),
        (
            "srun --nodes=2 --ntasks-per-node 4 -p gpu -t 30 ./a.out",
            "`./a.out` with --gpus 8 --nodes 2 --partition gpu --time 30m",
        ),
        ("srun --gpus 4 --time=1-12:00 -- python 'a b.py'", "`python 'a b.py'` with --gpus 4 --time 1-12:00"),
        ("srun --pty bash", "`bash` with --gpus and --nodes"),
        ("sbatch -p gpu run.sh 7", "`bash run.sh 7` with --partition gpu"),
        ("sbatch --wrap 'python a.py > x'", "`bash -c 'python a.py > x'` with --gpus and --nodes"),
        ("sudo -u ada A=1 python train.py", "`python train.py`"),
        ("ssh -p 22 node1 python train.py", "`python train.py`"),
        ("ssh node1 'cd x; python train.py'", "`bash -c 'cd x; python train.py'`"),
    ],
)
def test_other_starts_are_refused_with_the_line_that_the_user_meant(command: str, instead: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        parse_command(shlex.split(command))
    own = shlex.join(shlex.split(command.removeprefix("nohup ")))
    assert str(caught.value).endswith(f"; run {instead} instead of `{own}`")


@pytest.mark.parametrize(
    ("parts", "line"),
    [
        (["python", "train.py", ">", "a b.log"], "python train.py > 'a b.log'"),
        (
            ["A=1", "python", "train.py", "--lr", "1", "2>&1", "|", "tee", "log"],
            "A=1 python train.py --lr 1 2>&1 | tee log",
        ),
        (["cd", "exp", "&&", "python", "train.py"], "cd exp && python train.py"),
        (["bash", "run.sh", ";", "echo", "it's"], "bash run.sh ; echo 'it'\"'\"'s'"),
        (["./a.out", "<", "input"], "./a.out < input"),
        (["./a.out", ">log", "2>err", "a b"], "./a.out >log 2>err 'a b'"),
        (["python", "train.py", "&>>out/all.txt", "<~/in"], "python train.py &>>out/all.txt <~/in"),
    ],
)
def test_operators_of_a_shell_are_refused_with_the_line_to_use(parts: list[str], line: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        parse_command(parts)
    _, _, shown = str(caught.value).partition("use: ")
    command = shlex.split(shown.partition("; with several GPUs")[0])
    assert command == ["trainyard", "run", "--", "bash", "-c", line]
    assert ("--per rank" in shown) == (parts[0] == "python")


@pytest.mark.parametrize(
    "parts",
    [
        ["bash", "-c", 'echo "$1"', "_", ">"],
        ["find", ".", "-exec", "ls", "{}", ";"],
        ["python", "train.py", "--where", "loss>2", "<pad>", "a;b", "-->"],
        ["python", "train.py", ">=1.0", ">5", "<|end|>", "</s>"],
        ["uv", "run", "bash", "-c", "echo", "&&"],
    ],
)
def test_arguments_with_such_characters_remain(parts: list[str]) -> None:
    assert parse_command(parts).argv[-1] == parts[-1]
