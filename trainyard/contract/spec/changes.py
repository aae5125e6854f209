"""Changes of a spec that a failure or a hint proposes: whether the changed spec is accepted. Pure functions."""

from collections.abc import Iterable, Mapping
from typing import Any

from trainyard.contract.problems import Problem, SpecError
from trainyard.contract.spec.forks import fixed_differences, incompatible_fields
from trainyard.contract.spec.ineffective_fields import ineffective_fields
from trainyard.contract.spec.site import Site
from trainyard.contract.spec.templates import set_path
from trainyard.contract.spec.training_spec import TrainingSpec, dump_spec, fields_reset_by, parse_spec
from trainyard.contract.spec.unsupported import unsupported_fields

_FIXED = "differs from the job, whose training cannot continue with it"


def problems_of_change(spec: TrainingSpec, fields: Mapping[str, Any], *, continues: bool) -> list[Problem]:
    """Return the problems that a change adds to an accepted spec; none if the changed spec is accepted too.

    Problems that the unchanged spec has too do not count: its own site, which is not known here, accepted it.

    Args:
        fields: New values by the field's path.
        continues: Whether the changed spec must fit the checkpoints of the spec.
    """
    try:
        changed = parse_spec(changed_document(spec, fields))
    except SpecError as error:
        return list(error.problems)
    site = Site(accelerator="cpu" if spec.backend == "gloo" else "cuda")
    known = _keys([*unsupported_fields(spec, site), *ineffective_fields(spec)])
    problems = [*unsupported_fields(changed, site), *ineffective_fields(changed)]
    if continues:
        incompatible = incompatible_fields(spec, changed)
        names = {problem.param for problem in incompatible}
        fixed = [name for name in fixed_differences(spec, changed) if name not in names]
        problems += incompatible + [Problem(param=name, message=_FIXED) for name in fixed]
    return [problem for problem in problems if (problem.param, problem.message) not in known]


def changed_document(spec: TrainingSpec, fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return the spec with other values of fields, and without the values that these exclude."""
    document = dump_spec(spec)
    for path, value in fields.items():
        set_path(document, path, value)
    return document | fields_reset_by(fields)


def _keys(problems: Iterable[Problem]) -> set[tuple[str, str]]:
    return {(problem.param, problem.message) for problem in problems}
