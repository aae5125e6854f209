"""What is wrong with a document, said so that its writer can mend it: the field's path and a sentence."""

from collections.abc import Sequence
from difflib import get_close_matches

from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic_core import ErrorDetails

_UNION_TAGS = {
    "model": {"hf", "gpt", "convnet", "mlp"},
    "data": {"builtin", "jsonl"},
    "targets": {"auto", "names"},
    "micro_size": {"int", "literal['auto']", "constrained-int"},
}


class Problem(BaseModel):
    """One thing that is wrong."""

    model_config = ConfigDict(frozen=True)

    param: str
    """Dotted path of the field, `optimizer.lr`; empty for the document as a whole."""
    message: str

    def __str__(self) -> str:
        return f"{self.param}: {self.message}" if self.param else self.message


class SpecError(ValueError):
    """A document that cannot be accepted. Carries every problem found, not only the first."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        self.problems = tuple(problems)
        super().__init__("; ".join(map(str, self.problems)))


def problems_of(error: ValidationError, *, model: type[BaseModel] | None = None) -> list[Problem]:
    """pydantic's findings as problems; with the model, an unknown field gets the nearest known one suggested."""
    found: list[Problem] = []
    for detail in error.errors():
        inner = detail.get("ctx", {}).get("error")
        if isinstance(inner, SpecError):
            found.extend(inner.problems)
        else:
            found.append(Problem(param=_path(detail["loc"]), message=_message(detail, model)))
    return found


def _path(loc: tuple[int | str, ...]) -> str:
    parts: list[str] = []
    for part in loc:
        if parts and str(part) in _UNION_TAGS.get(parts[-1], ()):
            continue
        parts.append(str(part))
    return ".".join(parts)


def _message(detail: ErrorDetails, model: type[BaseModel] | None) -> str:
    match detail["type"]:
        case "extra_forbidden":
            near = get_close_matches(str(detail["loc"][-1]), _siblings(model, detail["loc"]), n=1)
            return "unknown field" + (f"; did you mean `{near[0]}`?" if near else "")
        case "missing":
            return "is required"
        case "model_type" | "model_attributes_type" | "dataclass_type":
            return "must be a section of fields"
        case "tuple_type":
            return "must be a list"
        case "string_pattern_mismatch":
            return "holds a character that is not allowed here"
    message = detail["msg"].removeprefix("Value error, ")
    return message[:1].lower() + message[1:]


def _siblings(model: type[BaseModel] | None, loc: tuple[int | str, ...]) -> list[str]:
    """The names that could stand where an unknown one does; none inside a union, whose tag may be what is wrong."""
    for part in loc[:-1]:
        field = model.model_fields.get(str(part)) if model else None
        inner = field.annotation if field else None
        model = inner if isinstance(inner, type) and issubclass(inner, BaseModel) else None
    return [field.alias or name for name, field in model.model_fields.items()] if model else []
