"""The tasks: the facts about each by which code decides. The worker registers how it builds each task of the loop."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

Task = Literal[
    "causal_lm",
    "sequence_classification",
    "text_embedding",
    "image_classification",
    "regression",
    "custom",
    "script",
    "comm_check",
]


@dataclass(frozen=True, kw_only=True)
class TaskKind:
    """One kind of job."""

    name: str
    in_loop: bool = True
    """Trainyard's training loop runs it: it has a model, data and a number of steps."""
    code_field: Literal["target", "argv"] | None = None
    """The field that names the user's code, which this task requires and no other may have."""
    tests_communication: bool = False
    """It measures the communication between ranks, and trains nothing."""
    min_ranks: int = 1

    reads: Literal["texts", "images", "values"] | None = None
    makes: Literal["texts", "classes", "vectors", "values"] | None = None
    """The inputs and outputs of the model. None: the user's code decides, or there is no model."""
    builtin_models: tuple[str, ...] = ()
    builtin_data: tuple[str, ...] = ()
    """Names of section `model` and `data` with source `builtin` that fit."""
    text_format: str | None = None
    """The format of text data that only this task reads."""
    examples: str = ""
    """The examples of that format, in the plural."""
    has_cross_entropy: bool = False
    """Its loss is a cross entropy, as section `loss` states."""
    supports_low_bit_bases: bool = False
    """Whether the base of adapters can be held in another data type than fp32."""
    evaluation_metrics: tuple[str, ...] | None = None
    """None: the user's code defines them, or there are no evaluations."""

    transformers_class: str = ""
    """The class of transformers that makes its models; empty if it trains none in Hugging Face's form."""
    peft_type: str | None = None
    """peft's name of the task, if it has one."""
    pipeline_tag: str | None = None
    """The name of the task on model hubs."""

    @property
    def runs_program(self) -> bool:
        """Whether the user's program is the job, instead of a loop of Trainyard."""
        return self.code_field == "argv"

    @property
    def has_own_code(self) -> bool:
        """Whether code of the user defines model, data and loss for Trainyard's loop."""
        return self.code_field == "target"

    @property
    def is_builtin(self) -> bool:
        """Whether Trainyard's loop runs it with a model and data that the spec describes."""
        return self.in_loop and not self.has_own_code

    @property
    def reads_texts(self) -> bool:
        return self.reads == "texts"

    @property
    def reads_images(self) -> bool:
        return self.reads == "images"

    @property
    def writes_texts(self) -> bool:
        """Whether the model is a language model, which has objectives, samples and settings of generation."""
        return self.makes == "texts"

    @property
    def classifies(self) -> bool:
        return self.makes == "classes"

    @property
    def makes_vectors(self) -> bool:
        """Whether the model makes vectors of texts, as section `embedding` states."""
        return self.makes == "vectors"

    @property
    def replaces_head(self) -> bool:
        """Whether a model in Hugging Face's form gets another head than that of a language model, or none."""
        return bool(self.transformers_class) and not self.writes_texts


_KINDS = (
    TaskKind(
        name="causal_lm",
        reads="texts",
        makes="texts",
        builtin_models=("gpt", "llama"),
        builtin_data=("stdlib",),
        has_cross_entropy=True,
        supports_low_bit_bases=True,
        evaluation_metrics=("eval/loss",),
        transformers_class="AutoModelForCausalLM",
        peft_type="CAUSAL_LM",
        pipeline_tag="text-generation",
    ),
    TaskKind(
        name="sequence_classification",
        reads="texts",
        makes="classes",
        text_format="labelled_text",
        examples="texts with labels",
        has_cross_entropy=True,
        evaluation_metrics=("eval/loss", "eval/accuracy", "eval/f1"),
        transformers_class="AutoModelForSequenceClassification",
        peft_type="SEQ_CLS",
        pipeline_tag="text-classification",
    ),
    TaskKind(
        name="text_embedding",
        reads="texts",
        makes="vectors",
        text_format="text_pair",
        examples="pairs of texts",
        evaluation_metrics=("eval/loss", "eval/recall_at_1"),
        transformers_class="AutoModel",
        peft_type="FEATURE_EXTRACTION",
        pipeline_tag="sentence-similarity",
    ),
    TaskKind(
        name="image_classification",
        reads="images",
        makes="classes",
        builtin_models=("convnet",),
        builtin_data=("digits",),
        has_cross_entropy=True,
        evaluation_metrics=("eval/loss", "eval/accuracy"),
        transformers_class="AutoModelForImageClassification",
        pipeline_tag="image-classification",
    ),
    TaskKind(
        name="regression",
        reads="values",
        makes="values",
        builtin_models=("mlp",),
        builtin_data=("parity",),
        evaluation_metrics=("eval/loss",),
        pipeline_tag="tabular-regression",
    ),
    TaskKind(name="custom", code_field="target"),
    TaskKind(name="script", in_loop=False, code_field="argv"),
    TaskKind(name="comm_check", in_loop=False, tests_communication=True, min_ranks=2),
)
TASKS = {kind.name: kind for kind in _KINDS}
_UNKNOWN = TaskKind(name="", in_loop=False)

LOOP_TASKS = frozenset(kind.name for kind in _KINDS if kind.in_loop)
"""Tasks that Trainyard's training loop runs: they have a model, data and a number of steps."""
CODE_TASKS = frozenset(kind.name for kind in _KINDS if kind.code_field)
"""Tasks that run a user's code with the rights of the service's account."""


def task_kind(name: object) -> TaskKind:
    """Return the facts about a task; for a task of another release, a record without facts."""
    return TASKS.get(name, _UNKNOWN) if isinstance(name, str) else _UNKNOWN


def quoted(names: Sequence[str]) -> str:
    """Return names for a sentence: `a`, `b` and `c`."""
    *others, last = (f"`{name}`" for name in names)
    return f"{', '.join(others)} and {last}" if others else last


def tasks_with(fact: Callable[[TaskKind], bool]) -> tuple[str, ...]:
    """Return the names of the tasks for which a fact is true."""
    return tuple(kind.name for kind in _KINDS if fact(kind))
