"""The prefixes of a program's runs."""

from worker.trackers.tracker_requests import Reporter, RunPrefixes


def test_runs_of_one_name_have_their_own_curves_in_each_execution() -> None:
    prefixes = RunPrefixes()
    runs = [("a", "main"), ("b", "fold"), ("c", "fold"), ("d", "fold-2"), ("e", "fold"), ("b", "fold")]
    made = [prefixes.prefix(Reporter(1, 0), run_id, name) for run_id, name in runs]
    assert made == ["", "fold/", "fold-2/", "fold-2-2/", "fold-3/", "fold/"]
    again = [prefixes.prefix(Reporter(2, 0), f"{run_id} again", name) for run_id, name in runs[:3]]
    assert again == ["", "fold/", "fold-2/"]
