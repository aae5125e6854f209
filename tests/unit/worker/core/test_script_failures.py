"""The rules by which a failed program is started again."""

import shlex
import signal
from dataclasses import replace

import pytest

from worker.core.rank_exits import RankExit
from worker.core.script_failures import (
    ProgramError,
    are_final,
    are_repeated,
    error_of,
    find_error,
    is_final,
    last_line,
    signature_of,
)


def trace(line: str) -> str:
    return f'Traceback (most recent call last):\n  File "train.py", line 3, in <module>\n{line}\n'


def end(exitcode: int, tail: str = "", rank: int = 0) -> tuple[RankExit, str]:
    return RankExit(rank, exitcode, pid=1, time=0.0), tail


@pytest.mark.parametrize(
    ("line", "exitcode", "final"),
    [
        ("ValueError: shapes do not match", 1, True),
        ("AssertionError", 1, True),
        ("KeyError: 'loss'", 1, True),
        ("ModuleNotFoundError: No module named 'datasets'", 1, True),
        ("FileNotFoundError: [Errno 2] No such file or directory: 'data.bin'", 1, True),
        ("RuntimeError: mat1 and mat2 shapes cannot be multiplied", 1, True),
        ("mypkg.errors.ConfigError: no such key", 1, True),
        ("RuntimeError: NCCL error in: ProcessGroupNCCL.cpp, remote process exited", 1, False),
        ("torch.distributed.DistBackendError: unhandled system error", 1, False),
        ("RuntimeError: [gloo/transport/tcp/pair.cc:547] Connection closed by peer [10.0.0.2]:5", 1, False),
        ("RuntimeError: CUDA error: uncorrectable ECC error encountered", 1, False),
        ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB", 1, False),
        ("OSError: [Errno 116] Stale file handle: 'train.bin'", 1, False),
        ("OSError: [Errno 28] No space left on device", 1, False),
        ("ConnectionResetError: [Errno 104]", 1, False),
        ("requests.exceptions.HTTPError: 503 Server Error", 1, False),
        ("KeyboardInterrupt", 1, False),
    ],
)
def test_exception_decides(line: str, exitcode: int, final: bool) -> None:
    assert are_final([end(exitcode, trace(line))]) is final


@pytest.mark.parametrize(
    ("exitcode", "final"),
    [
        (2, True),
        (124, False),
        (1, False),
        (3, False),
        (-signal.SIGKILL, False),
        (-signal.SIGSEGV, False),
        (-signal.SIGBUS, False),
    ],
)
def test_exit_code_decides_without_an_exception(exitcode: int, final: bool) -> None:
    assert is_final(None, exitcode) is final
    assert are_final([end(exitcode, "step 1\n")]) is final


@pytest.mark.parametrize(
    ("command", "exitcode", "tail", "final"),
    [
        ("timeout 3h python train.py", 124, "", True),
        ("env A=1 /usr/bin/timeout -k 9 3h ./a.out", 124, "", True),
        ("bash -c 'cd src && timeout 3h ./a.out'", 124, "", True),
        ("python train.py --timeout 3", 124, "", False),
        ("./run_with_timeout.sh", 124, "", False),
        ("make train", 2, "make: *** [Makefile:2: train] Error 3\n", False),
        ("/usr/bin/gmake train", 2, "gmake: *** [Makefile:2: train] Error 3\n", False),
        ("make all", 2, "make[1]: *** [Makefile:2: a] Error 9\nmake: *** [Makefile:4: all] Error 2\n", False),
        ("make all", 2, "make: *** [Makefile:6: all] Killed\n", False),
        ("make all", 2, "make: *** [all] Error 137\n", False),
        ("make all", 2, "make: *** [Makefile:6: all] Fehler 3\n", False),
        ("make all", 2, "make: *** [Makefile:6: all] Error 127\n", True),
        ("bash -c 'make all'", 2, "make: *** [Makefile:6: all] Terminated\n", False),
        ("make al", 2, "make: *** No rule to make target 'al'.  Stop.\n", True),
        ("python make.py", 2, "make: *** [Makefile:2: train] Error 3\n", True),
    ],
)
def test_command_gives_an_exit_code_its_meaning(command: str, exitcode: int, tail: str, final: bool) -> None:
    assert is_final(None, exitcode, shlex.split(command), tail) is final
    assert are_final([(replace(end(exitcode, tail)[0], command=shlex.split(command)), tail)]) is final


def test_signal_after_an_earlier_exception_is_not_final() -> None:
    assert not are_final([end(-signal.SIGKILL, trace("ValueError: caught") + "goes on\n")])


def test_exception_before_an_abort_is_final() -> None:
    tail = trace("ValueError: enough") + "terminate called without an active exception\n"
    assert are_final([end(-signal.SIGABRT, tail)])
    assert not are_final([end(-signal.SIGABRT, "terminate called after throwing\n")])


def test_transient_failure_of_another_rank_allows_a_start() -> None:
    own, peer = end(1, trace("ValueError: enough")), end(-signal.SIGTERM, rank=1)
    lost = end(-signal.SIGKILL, rank=1)
    assert are_final([own, peer])
    assert not are_final([own, lost])
    assert not are_final([])


def test_last_exception_of_a_log_is_the_error() -> None:
    text = trace("KeyError: 'a'") + "\nDuring handling of the above exception, another exception occurred:\n\n"
    assert find_error(text + trace("[rank1]: ValueError: b: c")) == ProgramError("ValueError", "b: c")
    assert find_error("all is well\n") is None


def hooked(exitcode: int = 1, **hook: object) -> RankExit:
    return RankExit(0, exitcode, pid=1, time=0.0, hook=hook)


def exception(type_: str, *bases: str, message: str = "", **more: object) -> dict[str, object]:
    return {"type": type_, "bases": [type_, *bases, "Exception"], "message": message, "notes": [], **more}


@pytest.mark.parametrize(
    ("recorded", "final"),
    [
        (exception("Bad", message="no such key"), True),
        (exception("queue.Empty"), True),
        (exception("optuna.TrialPruned"), True),
        (exception("ApiDown", "ConnectionError", "OSError"), False),
        (exception("Bad", causes=[exception("ConnectionResetError", "ConnectionError", "OSError")]), False),
        (exception("Bad", causes=[exception("KeyError", "LookupError")]), True),
        (exception("ExceptionGroup", parts=[exception("ValueError"), exception("TimeoutError", "OSError")]), False),
        (exception("ExceptionGroup", parts=[exception("ValueError"), exception("KeyError")]), True),
        (exception("RuntimeError", message="CUDA error: an illegal memory access was encountered"), False),
    ],
)
def test_recorded_exception_decides_by_its_types(recorded: dict[str, object], final: bool) -> None:
    """The log names another one."""
    caught = trace("ValueError: caught") if not final else trace("ConnectionResetError: caught")
    assert are_final([(hooked(exception=recorded), caught)]) is final


def test_caught_exception_is_not_the_error_of_a_program_that_leaves() -> None:
    caught = trace("KeyError: 'caught'")
    assert error_of(hooked(4, exit=None), caught) is None
    assert not are_final([(hooked(4, exit=None), caught)])
    assert error_of(hooked(4, exit="config is wrong"), caught) is None, "the program caught this exit"
    assert error_of(hooked(1, exit="config is wrong"), caught) == ProgramError("SystemExit", "config is wrong")
    assert are_final([(hooked(1, exit="config is wrong"), caught)])


def test_last_line_is_of_the_program() -> None:
    begin = "2026-11-28 17:45:37+0000 INFO rank 1, attempt 1, restart 0, pid 21923\n"
    assert last_line(begin) == ""
    assert last_line(begin + "bash: line 1: nvcc: command not found\n\n") == "bash: line 1: nvcc: command not found"


def test_notes_follow_the_message() -> None:
    error = error_of(hooked(exception={**exception("Bad", message="a"), "notes": ["in epoch 3"]}), "")
    assert (error and error.message) == "a\nin epoch 3"


IN_POOL = "\n\n-- Process 1 terminated with the following error:\n" + trace("ZeroDivisionError: in spawned")
IN_LOADER = "Caught Bad in DataLoader worker process 0.\nOriginal " + trace("mine.Bad: line 1\nline 2")
CHAINED = trace("KeyError: 1") + "\nDuring handling of the above exception, another exception occurred:\n\n"


@pytest.mark.parametrize(
    ("quoted", "type_", "message"),
    [
        (IN_POOL, "ZeroDivisionError", "in spawned"),
        (IN_LOADER, "mine.Bad", "line 1\nline 2"),
        (CHAINED + trace("Diverged"), "Diverged", ""),
    ],
)
def test_exception_of_a_worker_is_the_error_of_its_pool(quoted: str, type_: str, message: str) -> None:
    error = error_of(hooked(exception=exception("ProcessRaisedException", message=quoted)), "")
    assert error is not None
    assert (error.type, error.message) == (type_, message)
    assert ("ProcessRaisedException", quoted) in error.related, "it may be retried for either"


def test_message_of_torchruns_error_file_may_have_any_type() -> None:
    recorded = RankExit(0, 1, pid=1, time=0.0, message="Bad: my words: two")
    assert error_of(recorded, trace("ValueError: caught")) == ProgramError("Bad", "my words: two")


def signed(exitcode: int, tail: str = "", rank: int = 0) -> RankExit:
    return RankExit(rank, exitcode, pid=1, time=0.0, signature=signature_of(*end(exitcode, tail, rank)))


def failing(folder: str, line: int, message: str) -> str:
    frame = f'[rank0]:   File "{folder}/train.py", line {line}, in load\n[rank0]:     connect(host)\n'
    return f"step 17\n[rank0]: Traceback (most recent call last):\n{frame}[rank0]: {message}\n"


def test_same_traceback_repeats_with_other_folders_and_numbers() -> None:
    first = failing("/runs/a/attempts/1-x/code", 7, "ConnectionError: no answer from <Host at 0x7f01> of pid 4711")
    second = failing("/runs/a/attempts/2-y/code", 7, "ConnectionError: no answer from <Host at 0x7f99> of pid 12")
    assert are_repeated([signed(1, first)], [signed(1, second)])
    assert are_repeated([signed(1, first)], [signed(1, second, rank=3), signed(-signal.SIGTERM)])


@pytest.mark.parametrize(
    ("exitcode", "tail"),
    [
        (1, failing("/code", 8, "ConnectionError: no answer")),
        (1, failing("/code", 7, "TimeoutError: no answer")),
        (3, failing("/code", 7, "ConnectionError: no answer")),
        (1, "no traceback\n"),
        (-signal.SIGKILL, failing("/code", 7, "ConnectionError: no answer")),
    ],
)
def test_other_ends_do_not_repeat(exitcode: int, tail: str) -> None:
    before = [signed(1, failing("/code", 7, "ConnectionError: no answer"))]
    assert are_repeated(before, before)
    assert not are_repeated(before, [signed(exitcode, tail)])
    assert not are_repeated([signed(exitcode, tail)], before)


def test_exit_code_with_the_same_last_lines_repeats() -> None:
    assert are_repeated(
        [signed(3, "license server 10.0.0.1: refused\n")], [signed(3, "license server 10.0.0.2: refused\n")]
    )
    assert not are_repeated([signed(3, "a\n")], [signed(3, "b\n")])
    assert not are_repeated([signed(3)], [signed(3)])


def test_lost_ranks_do_not_repeat() -> None:
    closed = failing("/code", 7, "RuntimeError: [gloo/transport/tcp/pair.cc:5] Connection closed by peer")
    killed = signed(-signal.SIGKILL, rank=1)
    assert not are_repeated([signed(1, closed)], [signed(1, closed)])
    assert not are_repeated([signed(3, "a\n"), killed], [signed(3, "a\n"), killed])


IN_CELL = """
------------------
def f(a):
    return a / 0  # a timeout
f(x)
------------------


---------------------------------------------------------------------------
{type}                         Traceback (most recent call last)
Cell In[2], line 3
      1 def f(a):
----> 3 f(x)

Cell In[2], line 2, in f(a)
----> 2     return a / 0  # a timeout

{type}: {message}

"""
NBCONVERT = "An error occurred while executing the following cell:" + IN_CELL
PAPERMILL = '\n-------------\nException encountered at "In [2]":\n' + IN_CELL.partition("f(x)\n------------------\n")[2]


@pytest.mark.parametrize(
    ("text", "type_", "message", "final"),
    [
        (NBCONVERT, "ZeroDivisionError", "division by zero", True),
        (PAPERMILL, "ZeroDivisionError", "division by zero", True),
        (NBCONVERT, "Odd", "no", True),
        (PAPERMILL, "Odd", "", True),
        (NBCONVERT, "RuntimeError", "NCCL error", False),
    ],
)
def test_failure_of_a_notebook_names_the_cell(text: str, type_: str, message: str, final: bool) -> None:
    report = text.format(type=type_, message=message)
    log = f"ValueError: caught\nTraceback (most recent call last):\n  File 'x'\nnbclient.CellExecutionError: {report}"
    recorded = hooked(1, exception={"type": "nbclient.CellExecutionError", "bases": ["Exception"], "message": report})
    for ended, tail in (end(1, log), (recorded, "")):
        error = error_of(ended, tail)
        assert error is not None
        assert (error.type, error.message) == (type_, message)
        assert error.shown.startswith(f"{message} (in cell 2, line 3: f(x))")
        assert ("return a / 0" in error.shown) == (text == NBCONVERT)
        assert is_final(error, 1) is final, "the text of the cell does not decide"


def test_a_cell_with_wrong_syntax_is_named() -> None:
    report = (
        "An error occurred while executing the following cell:\n------------------\ndef f(:\n------------------\n\n"
    )
    error = error_of(
        *end(1, f"{report}\n  Cell In[1], line 1\n    def f(:\n          ^\nSyntaxError: invalid syntax\n")
    )
    assert error is not None
    assert (error.type, error.shown) == ("SyntaxError", "invalid syntax (in cell 1, line 1)\n\ndef f(:")
