"""Programs with relative output folders resume in the next attempt, without a changed line."""

import re
import signal

import pytest

from tests.integration.worker.harness import FakeService, Run, finish_of, store_code, wait_for

PROGRAM = """
import argparse, os, pathlib, time

parser = argparse.ArgumentParser()
parser.add_argument("--out_dir", default="out")
parser.add_argument("--init_from", default="scratch")
parser.add_argument("--steps", type=int, default=6)
options = parser.parse_args()
folder = pathlib.Path(options.out_dir)
if options.init_from == "scratch":
    folder.mkdir(parents=True)  # fails if it exists
saved = folder / "ckpt.pt"
first = int(saved.read_text()) if options.init_from == "resume" else 0
for step in range(first, options.steps):
    saved.write_text(str(step + 1))
    print("step", step, flush=True)
    if step == 2 and first == 0:
        time.sleep(60)
"""


@pytest.mark.cpu_seconds(10)
@pytest.mark.parametrize("out", ["out", "deep/results-1"])
def test_killed_program_resumes_from_a_relative_folder(tmp_path, out):
    document = {
        "task": "script",
        "argv": ["train.py", "--out_dir", out],
        "resume_argv": ["--init_from", "resume"],
        "gpus": 1,
        "keep": [out],
        "code": store_code(tmp_path, PROGRAM),
    }
    with FakeService() as service:
        run = Run(tmp_path / "job", service.url, document, template="script_line", max_restarts=0)
        first = run.start()
        wait_for(lambda: "step 2" in (first.rank_log(0).read_text() if first.rank_log(0).exists() else ""), "step 2")
        assert run.process is not None
        run.process.send_signal(signal.SIGKILL)
        run.process.wait()
        second = run.run(2)
    assert finish_of(second, 11).reason == "completed"
    assert re.findall(r"(?m)^step (\d)$", second.rank_log(0).read_text()) == ["3", "4", "5"]
    assert (second.work / out / "ckpt.pt").read_text() == "6"
    assert not (first.code / out).exists()
