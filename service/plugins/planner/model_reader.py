"""The structure of a spec's model: by formula, or from its folder, which is read in a thread with a time limit."""

from dataclasses import dataclass, field

from service.core.thread_slots import SlotsTakenError, ThreadSlots
from service.plugins.planner import builtin_models, hf_models
from service.plugins.planner.hf_folder import FolderContents, FolderError, read_folder
from service.plugins.planner.model_structure import ModelStructure
from service.plugins.planner.task_models import has_head_of_task, with_head_of_task
from trainyard.contract.allowed_roots import AllowedRoots
from trainyard.contract.spec.sections import HfModel
from trainyard.contract.spec.training_spec import TrainingSpec

SECONDS = 5.0
"""A folder that takes longer is assumed to lie on a filesystem that hangs."""
_EACH, _TOTAL = 6, 24
"""Maximum number of folders of a user, and of all users, that are read at once: more than a user has requests at
once."""


@dataclass(frozen=True)
class ModelInfo:
    """The known facts about a model."""

    structure: ModelStructure | None = None
    context: int | None = None
    unknown: str = ""
    """Why the structure is not known."""
    is_large: bool = False
    """The folder has more tensors than were allowed, and the structure was not built."""


@dataclass
class ModelReader:
    """Reads model folders in threads of its own, so that a filesystem that hangs blocks no request."""

    seconds: float = SECONDS
    _slots: ThreadSlots = field(init=False)

    def __post_init__(self) -> None:
        self._slots = ThreadSlots(each=_EACH, total=_TOTAL, seconds=self.seconds, wait_seconds=0)

    def find(self, spec: TrainingSpec, roots: AllowedRoots, owner: str, *, max_tensors: int | None = None) -> ModelInfo:
        """Return the known facts about the spec's model. Blocks for at most `seconds`.

        Args:
            owner: The user whose spec it is.
            max_tensors: Tensors in a folder above which no structure is built.
        """
        if not spec.task_kind.in_loop:
            return ModelInfo(unknown=f"task `{spec.task}` runs its own program, whose memory is not known")
        if spec.task_kind.has_own_code or spec.model is None:
            return ModelInfo(
                unknown=f"the model of a `{spec.task}` task is not known before it is built; no job is rejected for it"
            )
        if not isinstance(spec.model, HfModel):
            structure = builtin_models.structure_of(spec.model)
            return ModelInfo(structure, unknown="" if structure else "a model with this many layers is not counted")
        try:
            facts = self._read(spec.model.path, roots, owner)
        except FolderError as error:
            return ModelInfo(unknown=f"model.path: {error}")
        except TimeoutError:
            return ModelInfo(unknown=f"model.path: {spec.model.path} was not read within {self.seconds:g} s")
        if max_tensors is not None and len(facts.tensors) > max_tensors:
            return ModelInfo(is_large=True)
        structure = hf_models.structure_of(facts)
        if has_head_of_task(spec):
            structure = with_head_of_task(structure, facts.config, spec)
        return ModelInfo(structure, hf_models.context_of(facts.config))

    def _read(self, path: str, roots: AllowedRoots, owner: str) -> FolderContents:
        try:
            return self._slots.call(owner, read_folder, path, roots)
        except SlotsTakenError:
            raise FolderError("too many folders are being read; try again in a few seconds") from None
