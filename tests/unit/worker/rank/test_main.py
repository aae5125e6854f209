from trainyard.contract.layout import AttemptLayout
from worker.rank.main import record_failure


def test_failure_is_logged_without_its_error_file(tmp_path, caplog):
    layout = AttemptLayout(tmp_path)
    layout.errors.write_text("a file in place of the folder, which fails as a full disk does")
    try:
        raise RuntimeError("the step failed")
    except RuntimeError as error:
        record_failure(layout, error, 0, 1, None)
    assert "the error file cannot be written" in caplog.text
    assert "RuntimeError: the step failed" in caplog.text
