"""Detection of a stalled run from progress records, and of the rank that is behind."""

from trainyard.contract.layout import AttemptLayout
from trainyard.progress_file import ProgressCounter, ProgressRecord, ProgressWriter, interval, location, read_progress
from worker.launcher.watchdog import (
    START_GRACE_SECONDS,
    Watchdog,
    behind,
    detect_stall,
    size_of,
    stack_after,
    to_failure,
)


def record(rank, marks, **changes):
    fields = {"rank": rank, "execution": 1, "marks": marks, "position": (3, marks), "step": 3, "phase": "forward"}
    return ProgressRecord(**{**fields, **changes})


def by_rank(*result):
    return {one.rank: one for one in result}


class TestRanksBehind:
    def test_position_in_the_run_counts_and_not_the_number_of_marks(self):
        # The first rank has read the data for the others, and has made marks meanwhile.
        reading = record(0, 99, position=(3, 0), phase="between", loading=True)
        waiting = record(1, 44, position=(3, 2), phase="backward", in_torch=True)
        assert behind(by_rank(reading, waiting), 2) == [0]
        assert behind(by_rank(record(0, 9, position=(3, 5)), record(1, 9, position=(2, 8))), 2) == [1]

    def test_before_the_first_step_the_rank_outside_torch_is_behind(self):
        reading = record(0, 99, position=(0, 0), phase="starting")
        waiting = record(1, 4, position=(0, 0), phase="starting", in_torch=True)
        assert behind(by_rank(reading, waiting), 2) == [0]

    def test_rank_with_the_fewest_marks_in_the_step_is_behind(self):
        assert behind(by_rank(record(0, 9), record(1, 7), record(2, 9)), 3) == [1]

    def test_rank_without_a_record_is_behind(self):
        assert behind(by_rank(record(0, 9), record(2, 1)), 4) == [1, 3]

    def test_at_equal_marks_the_rank_outside_torch_is_behind(self):
        assert behind(by_rank(record(0, 9, in_torch=True), record(1, 9, in_torch=False)), 2) == [1]

    def test_no_rank_is_behind_if_all_are_equal(self):
        assert behind(by_rank(record(0, 9, in_torch=True), record(1, 9, in_torch=True)), 2) == []


class TestDetectStall:
    def test_stall_names_the_rank_its_position_and_the_others(self):
        result = by_rank(record(0, 9, phase="backward"), record(1, 7, phase="between", where="a.py:3 in load"))
        stall = detect_stall(result, 61.0, 60.0, 2)
        assert stall.behind == (1,)
        assert stall.message == (
            "no rank made progress for 61 seconds: rank 1 is behind, in step 3 (between), at a.py:3 in load; "
            "the others wait in step 3 (backward)"
        )

    def test_failure_names_the_node_of_the_rank_that_is_behind(self):
        stall = detect_stall(by_rank(record(0, 9, host="n1"), record(1, 7, host="n2")), 61.0, 60.0, 2)
        assert to_failure(stall, "").host == "n2"
        equal = [record(rank, 9, host="n1", in_torch=True) for rank in (0, 1)]
        assert to_failure(detect_stall(by_rank(*equal), 61.0, 60.0, 2), "").host is None

    def test_no_stall_before_the_timeout(self):
        assert detect_stall(by_rank(record(0, 9)), 60.0, 60.0, 1) is None

    def test_no_stall_without_a_record(self):
        assert detect_stall({}, 1e9, 60.0, 2) is None

    def test_start_has_a_longer_timeout(self):
        result = by_rank(record(0, 2, phase="starting", step=0))
        assert detect_stall(result, 61.0, 60.0, 1) is None
        assert detect_stall(result, START_GRACE_SECONDS + 61.0, 60.0, 1) is not None


class TestWatchdog:
    def test_progress_of_any_rank_resets_the_timeout(self, tmp_path):
        layout, clock = AttemptLayout(tmp_path), [0.0]
        layout.progress.mkdir()
        watchdog = Watchdog(layout, 2, 60.0, lambda: 1, now=lambda: clock[0])

        def at(time, *result):
            clock[0] = time
            for one in result:
                layout.progress_file(one.rank).write_text(one.model_dump_json())
            return watchdog.poll()

        assert at(10.0, record(0, 1), record(1, 1)) is None
        assert at(60.0, record(1, 2)) is None
        assert at(115.0) is None
        assert at(125.0).behind == (0,)

    def test_records_of_an_earlier_execution_are_ignored(self, tmp_path):
        layout = AttemptLayout(tmp_path)
        layout.progress.mkdir()
        layout.progress_file(0).write_text(record(0, 1).model_dump_json())
        assert read_progress(layout.progress, 2) == {}


class TestProgressCounter:
    def test_phase_is_starting_until_the_first_update(self):
        counter = ProgressCounter()
        counter.mark("forward", 1)
        assert counter.phase == "starting"
        counter.underway = True
        counter.mark("forward", 2)
        assert (counter.phase, counter.step, counter.marks) == ("forward", 2, 2)

    def test_position_counts_the_marks_of_a_step(self):
        counter, positions = ProgressCounter(), []
        for phase, step in (("starting", None), ("between", 5), ("forward", None), ("update", None), ("between", 6)):
            counter.mark(phase, step)
            positions.append(counter.position)
        assert positions == [(0, 0), (5, 0), (5, 1), (5, 2), (6, 0)]

    def test_a_record_has_the_line_of_the_training_thread(self, tmp_path):
        counter, layout = ProgressCounter(), AttemptLayout(tmp_path)
        ProgressWriter(counter, layout.progress_file(3), rank=3, execution=7, interval=3600).start()
        result = read_progress(layout.progress, 7)[3]
        assert (result.marks, result.phase) == (0, "starting")
        assert "script.py" in result.where

    def test_torch_is_distinguished_from_its_caller(self):
        # A frame of a file under a folder named torch, as the compiler would name it.
        program = compile("def inner(look): return look()", "/x/torch/f.py", "exec")
        names = {}
        exec(program, names)
        where, inside = names["inner"](lambda: location(__import__("sys")._getframe(1)))
        assert inside
        assert "test_watchdog.py" in where

    def test_progress_interval_follows_the_stall_timeout(self):
        assert (interval(1.0), interval(30.0), interval(900.0)) == (0.1, 1.5, 2.0)


class TestStacks:
    def test_only_the_requested_part_of_a_long_log_is_read(self, tmp_path):
        log = tmp_path / "rank-0.log"
        with log.open("wb") as file:
            file.truncate(1 << 40)
        end = size_of(log)
        with log.open("ab") as file:
            file.write(b"Current thread\n" + b"x" * 100_000)
        assert stack_after(log, end).startswith("Current thread\nxxx")
        assert len(stack_after(log, end)) == 60_000

    def test_stacks_of_a_rank_without_a_log(self, tmp_path):
        assert (size_of(tmp_path / "none.log"), stack_after(tmp_path / "none.log", 0)) == (0, "")
