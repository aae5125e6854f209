"""From a spec's model to its outline: by formula, or from its folder, read beside the caller with a time limit."""

from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as Late
from dataclasses import dataclass, field

from service.planner import builtin_models as builtin
from service.planner import hf_models as huggingface
from service.planner.hf_folder import FolderError, FolderFacts, read_folder
from service.planner.model_structure import Outline
from trainyard.contract.spec.sections import HfModel
from trainyard.contract.spec.training_spec import LOOP_TASKS, TrainingSpec

SECONDS = 5.0
"""A folder that is not read by then lies on a filesystem that hangs."""
_AT_ONCE = 4


@dataclass(frozen=True)
class Found:
    """A model, or why nothing is known of it."""

    outline: Outline | None = None
    context: int | None = None
    unknown: str = ""


@dataclass
class Models:
    """Reads folders in threads of its own: a filesystem that hangs costs those, and no request waits for it."""

    seconds: float = SECONDS
    _threads: ThreadPoolExecutor | None = field(default=None, init=False)
    _reading: dict[tuple[str, tuple[str, ...]], "Future[FolderFacts]"] = field(default_factory=dict, init=False)

    def find(self, spec: TrainingSpec, roots: tuple[str, ...]) -> Found:
        """What is known of the spec's model. Blocks for as long as the limit at most."""
        if spec.task not in LOOP_TASKS:
            return Found(unknown=f"task `{spec.task}` runs its own program; nothing is known of its memory")
        if spec.task == "custom" or spec.model is None:
            return Found(unknown="the model of a `custom` task is known when it is built; nothing is refused")
        if not isinstance(spec.model, HfModel):
            outline = builtin.outline_of(spec.model)
            return Found(outline, unknown="" if outline else "a model of so many layers is not counted")
        try:
            facts = self._read(spec.model.path, roots)
        except FolderError as error:
            return Found(unknown=f"model.path: {error}")
        except Late:
            return Found(unknown=f"model.path: {spec.model.path} was not read within {self.seconds:g} s")
        return Found(huggingface.outline_of(facts), huggingface.context_of(facts.config))

    def _read(self, path: str, roots: tuple[str, ...]) -> FolderFacts:
        """One reading of a folder at a time: those who ask meanwhile wait for the same one."""
        if self._threads is None:
            self._threads = ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="folders")
        key = (path, roots)
        reading = self._reading.get(key)
        if reading is None:
            if len(self._reading) >= 2 * _AT_ONCE:
                raise FolderError("too many folders are being read; try again in a moment")
            reading = self._reading[key] = self._threads.submit(read_folder, path, roots)
            reading.add_done_callback(lambda _: self._reading.pop(key, None))
        return reading.result(self.seconds)
