import pytest

from trainyard.contract.spec.sections import Schedule
from worker.engine.optim import learning_rate


def rates(schedule, total=10):
    return [round(learning_rate(schedule, 1.0, step, total), 6) for step in range(1, total + 1)]


class TestLearningRate:
    def test_constant(self):
        assert rates(Schedule()) == [1.0] * 10

    def test_warm_up_rises_from_zero_to_the_peak(self):
        assert rates(Schedule(warmup_steps=4))[:5] == [0.25, 0.5, 0.75, 1.0, 1.0]

    def test_linear_ends_at_the_final_rate(self):
        assert rates(Schedule(name="linear", final=0.5))[-1] == 0.5
        assert rates(Schedule(name="linear", warmup_steps=2))[-2:] == [0.125, 0.0]

    def test_cosine_is_half_way_in_the_middle(self):
        assert rates(Schedule(name="cosine"))[4] == pytest.approx(0.5)
        assert rates(Schedule(name="cosine", final=0.2))[-1] == pytest.approx(0.2)

    def test_warm_up_can_last_for_the_whole_run(self):
        assert rates(Schedule(name="cosine", warmup_steps=10))[-1] == 1.0
