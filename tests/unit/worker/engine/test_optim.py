import pytest
import torch
from transformers import get_scheduler

from trainyard.contract.spec.optimization import Schedule
from worker.engine.optim import learning_rate


def rates(schedule, total=10):
    return [round(learning_rate(schedule, 1.0, step, total), 6) for step in range(1, total + 1)]


class TestLearningRate:
    def test_constant(self):
        assert rates(Schedule()) == [1.0] * 10

    def test_warm_up_rises_from_zero_to_the_peak(self):
        assert rates(Schedule(warmup_steps=4))[:5] == [0.25, 0.5, 0.75, 1.0, 1.0]

    def test_warm_up_is_a_fraction_of_the_run(self):
        assert rates(Schedule(warmup_ratio=0.4)) == rates(Schedule(warmup_steps=4))

    def test_linear_starts_at_the_peak_and_would_end_after_the_last_step(self):
        assert rates(Schedule(name="linear")) == [1.0, 0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2, 0.1]
        assert rates(Schedule(name="linear", final=0.5))[-1] == 0.55
        assert rates(Schedule(name="linear", warmup_steps=2))[:3] == [0.5, 1.0, 1.0]
        assert rates(Schedule(name="linear", warmup_steps=2))[-2:] == [0.25, 0.125]

    def test_cosine_is_half_way_in_the_middle(self):
        assert rates(Schedule(name="cosine"))[5] == pytest.approx(0.5)
        assert rates(Schedule(name="cosine", final=0.2))[-1] == pytest.approx(0.219577)

    def test_wsd_decays_in_the_last_part(self):
        assert rates(Schedule(name="wsd", warmup_steps=2, decay_ratio=0.4)) == [0.5, *[1.0] * 6, 0.75, 0.5, 0.25]
        assert rates(Schedule(name="wsd", warmup_steps=8, decay_ratio=1))[-3:] == [1.0, 1.0, 0.5]

    def test_warm_up_can_last_for_the_whole_run(self):
        assert rates(Schedule(name="cosine", warmup_steps=10))[-1] == 1.0

    @pytest.mark.parametrize("name", ["constant", "linear", "cosine", "wsd"])
    def test_a_single_step_has_the_peak(self, name):
        assert rates(Schedule(name=name), total=1) == [1.0]

    @pytest.mark.parametrize("name", ["linear", "cosine"])
    def test_decay_equals_that_of_transformers(self, name):
        """Whose warm-up starts at zero, so that its steps are one later."""
        parameter = torch.nn.Parameter(torch.zeros(1))
        theirs = get_scheduler(name, torch.optim.SGD([parameter], lr=1.0), num_warmup_steps=3, num_training_steps=10)
        expected = []
        for _ in range(10):
            expected.append(theirs.get_last_lr()[0])
            theirs.optimizer.step()
            theirs.step()
        assert rates(Schedule(name=name, warmup_steps=3))[3:] == pytest.approx(expected[3:], abs=1e-6)
