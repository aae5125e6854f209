"""The verdict on a run that makes no progress: the first reason that the evidence proves."""

import pytest

from trainyard.progress_file import ProgressRecord
from worker.launcher.collectives import Difference
from worker.launcher.rank_state import RankState
from worker.launcher.stall_verdict import Evidence, judge, judge_program


def record(rank: int, marks: int = 9, **changes: object) -> ProgressRecord:
    fields = {"rank": rank, "execution": 1, "marks": marks, "position": (3, marks), "step": 3, "phase": "backward"}
    fields |= {"host": f"gpu-{rank}"}
    return ProgressRecord.model_validate({**fields, **changes})


BEHIND = {0: record(0, in_torch=True), 1: record(1, 7, phase="between", where="load.py:8 in read")}
LOADING = {0: BEHIND[0], 1: record(1, 7, phase="between", loading=True)}
EQUAL = {0: record(0, in_torch=True), 1: record(1, in_torch=True)}


@pytest.mark.parametrize(
    ("records", "behind", "of_rank_1", "kind", "text"),
    [
        (BEHIND, (1,), {"has_ended": True}, "ended", "its process has ended. 1 rank waits for it"),
        (BEHIND, (1,), {"state": "T"}, "stopped", "a signal or a debugger has stopped it. 1 rank waits for it"),
        (EQUAL, (), {"state": "t"}, "stopped", "a signal or a debugger has stopped it. 1 rank waits for it"),
        (BEHIND, (1,), {"state": "D", "waits_for": "/data/x"}, "disk", "the kernel waits for /data/x. 1 rank"),
        (BEHIND, (1,), {"state": "D"}, "disk", "the kernel waits for a file or a device. 1 rank"),
        (LOADING, (1,), {"state": "S", "waits_for": "pipe:[7]"}, "loader", "it waits for its data loader"),
        (BEHIND, (1,), {"state": "S", "waits_for": "/d/pipe"}, "file", "it waits for /d/pipe"),
        (BEHIND, (1,), {"state": "S", "waits_for": "socket:[7]"}, "file", "it waits for a network connection"),
        (BEHIND, (1,), {"state": "S", "waits_for": "anon_inode:[eventfd]"}, "code", "it waits in this line"),
        (BEHIND, (1,), {"processor_share": 0.97}, "slow", "it computes (97% of a processor), so it may be slow"),
        (BEHIND, (1,), {"state": "R", "processor_share": 0.2}, "slow", "it computes (20% of a processor)"),
        (BEHIND, (1,), {"state": "S", "processor_share": 0.2}, "code", "it waits in this line"),
        (BEHIND, (1,), {"state": "S", "call": "lock"}, "lock", "it waits for a lock or a queue"),
        (BEHIND, (1,), {"state": "S"}, "code", "at load.py:8 in read: it waits in this line"),
        (EQUAL, (), {"state": "S"}, "all_in_operation", "All 2 ranks are in step 3 (backward); check the network"),
    ],
)
def test_first_proved_reason_is_stated(
    records: dict[int, ProgressRecord],
    behind: tuple[int, ...],
    of_rank_1: dict[str, object],
    kind: str,
    text: str,
) -> None:
    states = {0: RankState(rank=0, state="S"), 1: RankState.model_validate({"rank": 1, **of_rank_1})}
    verdict = judge(behind, Evidence(records, states))
    assert (verdict.kind, text in verdict.text) == (kind, True), verdict.text
    assert verdict.ranks == (() if kind == "all_in_operation" else (1,))


def test_sentence_names_rank_node_position_and_the_waiting_ranks() -> None:
    verdict = judge((1,), Evidence(BEHIND, {1: RankState(rank=1, host="gpu-1", state="T")}))
    assert verdict.text == (
        "Rank 1 on gpu-1 is in step 3 (between), at load.py:8 in read: a signal or a debugger has stopped it. "
        "1 rank waits for it"
    )


def test_without_states_the_position_remains() -> None:
    assert judge((1,), Evidence(BEHIND, {})).kind == "code"
    assert judge((1,), Evidence({0: EQUAL[0]}, {})).text.startswith("Rank 1 is without any progress record")
    assert (
        judge((), Evidence({0: record(0, in_torch=True)}, {0: RankState(rank=0, processor_share=1.0)})).kind == "slow"
    )


def test_disk_of_a_rank_that_is_not_behind_is_no_reason() -> None:
    states = {0: RankState(rank=0, state="D", waits_for="/ckpt/x"), 1: RankState(rank=1, state="S", call="lock")}
    assert judge((1,), Evidence(BEHIND, states)).kind == "lock"


MISSING = Difference((1,), False, "Rank 1 has not entered all_reduce 6 (400 B); 1 rank waits in it")
OTHER = Difference((1,), True, "Rank 1 is in barrier 6, but rank 0 is in all_reduce 6 (400 B)")


@pytest.mark.parametrize(
    ("records", "behind", "of_rank_1", "difference", "kind", "end"),
    [
        (BEHIND, (1,), {"call": "lock"}, MISSING, "lock", "it waits for a lock or a queue. " + MISSING.text),
        (EQUAL, (), {"state": "S"}, MISSING, "operation", "it waits in an operation of torch. " + MISSING.text),
        (EQUAL, (), {"state": "T"}, MISSING, "stopped", "a signal or a debugger has stopped it. " + MISSING.text),
        (BEHIND, (0,), {"state": "S"}, OTHER, "order", "it is in another collective than other ranks. " + OTHER.text),
        (BEHIND, (1,), {"state": "T"}, OTHER, "stopped", "a signal or a debugger has stopped it. " + OTHER.text),
    ],
)
def test_collectives_name_the_rank_and_what_the_others_wait_in(
    records: dict[int, ProgressRecord],
    behind: tuple[int, ...],
    of_rank_1: dict[str, object],
    difference: Difference,
    kind: str,
    end: str,
) -> None:
    states = {0: RankState(rank=0, state="S"), 1: RankState.model_validate({"rank": 1, "state": "S", **of_rank_1})}
    verdict = judge(behind, Evidence(records, states, difference))
    assert (verdict.kind, verdict.ranks) == (kind, (1,))
    assert verdict.text.endswith(end)


def test_rank_whose_threads_do_not_answer_has_its_interpreter_locked() -> None:
    states = {1: RankState(rank=1, state="S", call="sleep", line="load.py:9 in decode")}
    verdict = judge((1,), Evidence(BEHIND, states, None, frozenset({1})))
    assert verdict.kind == "interpreter"
    assert "a call in C keeps the interpreter's lock, called at load.py:9 in decode. 1 rank waits" in verdict.text
    busy = {1: RankState(rank=1, state="R", processor_share=1.0)}
    assert judge((1,), Evidence(BEHIND, busy, None, frozenset({1}))).kind == "slow"


def test_several_ranks_are_counted() -> None:
    records = {rank: record(rank, 7 if rank else 9) for rank in range(8)}
    states = {rank: RankState(rank=rank, state="T") for rank in range(1, 8)}
    text = judge(tuple(range(1, 8)), Evidence(records, states)).text
    assert "Rank 1 on gpu-1 (and 6 more: 2, 3, 4) is in step 3" in text


@pytest.mark.parametrize(
    ("of_rank_1", "kind", "text"),
    [
        ({"has_ended": True}, "ended", "has ended"),
        ({"state": "T", "call": "lock"}, "stopped", "is stopped by a signal or a debugger"),
        ({"state": "D", "waits_for": "/data/x"}, "disk", "waits in the kernel for /data/x"),
        ({"waits_for": "/data/pipe", "line": "t.py:8 in f"}, "file", "on gpu-1 at t.py:8 in f waits for /data/pipe"),
        ({"waits_for": "socket:[7]"}, "file", "on gpu-1 waits for a network connection"),
        ({"call": "sleep"}, "sleep", "on gpu-1 sleeps"),
        ({"call": "child"}, "child", "waits for another process"),
        ({"call": "lock"}, "lock", "waits for a lock, a queue or a thread"),
        (
            {"call": "events", "waits_for": "anon_inode:[eventpoll]"},
            "events",
            "waits for a connection, a pipe or a time",
        ),
    ],
)
def test_program_is_judged_by_the_rank_that_explains_most(of_rank_1: dict[str, object], kind: str, text: str) -> None:
    rank = {"rank": 1, "host": "gpu-1", "pid": 77, "command": "python", "state": "S", **of_rank_1}
    verdict = judge_program({0: RankState(rank=0, state="S", call=""), 1: RankState.model_validate(rank)})
    assert (verdict.kind, verdict.ranks) == (kind, (1,))
    assert verdict.text.startswith("Rank 1 (process 77, python)")
    assert text in verdict.text


def test_program_whose_reason_is_unknown() -> None:
    states = {rank: RankState(rank=rank, host="n1", pid=70 + rank, command="a.out", state="S") for rank in range(3)}
    assert judge_program(states).text == (
        "Rank 0 (and 2 more: 1, 2) (process 70, a.out) on n1 waits; the reason is not known"
    )
    assert judge_program({}).text == "No process of a rank could be read"
