"""Phase `service`: one job through the whole service, if its packages are installed too."""

import importlib
import math

from bench.gpu.cases import Case, Outcome, Tools

PRESET = "gpt_stdlib"
WAIT_SECONDS = 400.0


def cases(*, dry: bool) -> list[Case]:
    try:
        importlib.import_module("service.main")
        importlib.import_module("trainyard.demo")
    except ImportError as error:
        print(f"service: not run: {error}", flush=True)
        return []
    return [Case(f"{PRESET} on one {'CPU' if dry else 'GPU'}", _run)]


def _run(tools: Tools) -> Outcome:
    # Its command line needs packages that a machine with the worker's packages alone lacks.
    from trainyard.demo import ServiceProcess

    steps = 6 if tools.dry else 200
    service = ServiceProcess(tools.folder, accelerator="cpu" if tools.dry else "cuda", local_slots="1")
    service.start()
    try:
        with service.client() as client:
            changes = {"gpus": 1, "strategy": "single", "steps": steps, "schedule": {"name": "constant"}}
            regular = {
                "evaluation": {"every_steps": steps},
                "checkpoint": {"every_steps": steps},
                "log": {"every_steps": 1},
            }
            handle = client.submit({**client.template(PRESET).spec, **changes, **regular})
            job = client.wait(handle.id, timeout=WAIT_SECONDS)
            losses = [point.value for point in client.points(job.id, ["train/loss"])]
            checkpoints = len(client.checkpoints(job.id))
            last_event = "" if job.status == "succeeded" else f"; last event: {[*client.events(job.id)][-1].message}"
    finally:
        service.stop()
    complete = len(losses) == steps and all(map(math.isfinite, losses)) and checkpoints > 0
    values: dict[str, str | float] = {"status": job.status, "checkpoints": checkpoints}
    if losses:
        values |= {"first loss": losses[0], "last loss": losses[-1]}
    note = f"{steps} points and a checkpoint arrive{last_event}"
    return Outcome(values, job.status == "succeeded" and complete, note)
