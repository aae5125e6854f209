"""YAML as data only: no tags, no anchors, bounded depth and size. An error gives its position."""

from collections.abc import Callable
from typing import Any

import yaml

from trainyard.contract.bounds import MAX_DEPTH, MAX_SPEC_BYTES, MAX_TEXT, MAX_VALUES
from trainyard.contract.problems import Problem, SpecError

_NULL, _DATE = "tag:yaml.org,2002:null", "tag:yaml.org,2002:timestamp"

# libyaml is 10 times as fast; only a PyYAML that was compiled without it lacks this loader.
_SafeLoader: type[yaml.SafeLoader] = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def _resolvers(accepts: Callable[[str], bool]) -> dict[str, list[Any]]:
    """Return the rules that give unquoted text another type, for the tags that are accepted."""
    known = yaml.SafeLoader.yaml_implicit_resolvers
    return {first: [rule for rule in rules if accepts(rule[0])] for first, rules in known.items()}


class _DataLoader(_SafeLoader):  # type: ignore[valid-type, misc]
    """The safe loader, without dates, which are text in JSON, and without duplicate keys."""

    yaml_implicit_resolvers = _resolvers(lambda tag: tag != _DATE)

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        keys: set[Any] = set()
        for key_node, _ in node.value:
            if isinstance(key_node, yaml.ScalarNode) and key_node.value in keys:
                problem = f"duplicate key {key_node.value!r}"
                raise yaml.MarkedYAMLError(problem=problem, problem_mark=key_node.start_mark)
            keys.add(key_node.value if isinstance(key_node, yaml.ScalarNode) else id(key_node))
        mapping: dict[Any, Any] = super().construct_mapping(node, deep)
        return mapping


class _TextLoader(_DataLoader):
    """Loads every scalar as text, except `null`."""

    yaml_implicit_resolvers = _resolvers(lambda tag: tag == _NULL)


def load_yaml(text: str, *, all_text: bool = False, max_values: int = MAX_VALUES) -> Any:
    """Parse a YAML document.

    Args:
        all_text: Read numbers and `true` as text, as if they were quoted.
        max_values: Maximum number of values, keys included.

    Raises:
        SpecError: The text is not YAML, uses tags or anchors, or exceeds a bound.
    """
    try:
        # libyaml builds nodes recursively in C and calls no code of ours, so the events are checked before that.
        _check_events(text, max_values)
        return yaml.load(text, Loader=_TextLoader if all_text else _DataLoader)  # noqa: S506 (SafeLoaders)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
        raise SpecError([Problem(param="", message=f"not valid YAML: {where}{error.problem}")]) from None
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise SpecError([Problem(param="", message=f"not valid YAML: {error}")]) from None


def _check_events(text: str, max_values: int) -> None:
    if len(text) > MAX_SPEC_BYTES:
        raise ValueError(f"longer than {MAX_SPEC_BYTES} characters")
    depth = values = 0
    for event in yaml.parse(text, Loader=_SafeLoader):
        problem = None
        if isinstance(event, yaml.CollectionEndEvent):
            depth -= 1
        elif isinstance(event, yaml.NodeEvent):
            values += 1
            depth += isinstance(event, yaml.CollectionStartEvent)
            if isinstance(event, yaml.AliasEvent) or event.anchor:
                problem = "anchors and aliases are not allowed"
            elif getattr(event, "tag", None) not in (None, "!"):
                problem = "tags are not allowed"
            elif depth > MAX_DEPTH:
                problem = f"nested deeper than {MAX_DEPTH}"
            elif values > max_values:
                problem = f"more than {max_values} values"
            elif isinstance(event, yaml.ScalarEvent) and len(event.value) > MAX_TEXT:
                problem = f"a value has more than {MAX_TEXT} characters"
        if problem:
            raise yaml.MarkedYAMLError(problem=problem, problem_mark=event.start_mark)  # type: ignore[arg-type]  # a libyaml mark is the same
