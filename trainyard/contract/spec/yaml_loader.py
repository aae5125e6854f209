"""YAML as data only: no tags, no anchors, bounded depth. What is refused says where it stands."""

from collections.abc import Callable
from typing import Any

import yaml

from trainyard.contract.problems import Problem, SpecError

MAX_DEPTH = 32

_NULL, _DATE = "tag:yaml.org,2002:null", "tag:yaml.org,2002:timestamp"


def _reading(accepts: Callable[[str], bool]) -> dict[str, list[Any]]:
    """Which unquoted words a loader takes for something other than text: those with a tag that is wanted."""
    known = yaml.SafeLoader.yaml_implicit_resolvers
    return {first: [one for one in kinds if accepts(one[0])] for first, kinds in known.items()}


class _DataLoader(yaml.SafeLoader):
    """SafeLoader less aliases (a few lines can expand to gigabytes), duplicate keys, deep nesting and dates, which
    are text in JSON."""

    yaml_implicit_resolvers = _reading(lambda tag: tag != _DATE)

    def __init__(self, stream: str) -> None:
        super().__init__(stream)
        self._depth = 0

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        event = self.peek_event()  # type: ignore[no-untyped-call]
        if isinstance(event, yaml.AliasEvent) or getattr(event, "anchor", None):
            raise yaml.MarkedYAMLError(problem="anchors and aliases are not allowed", problem_mark=event.start_mark)
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise yaml.MarkedYAMLError(problem=f"nested deeper than {MAX_DEPTH}", problem_mark=event.start_mark)
        try:
            return super().compose_node(parent, index)
        finally:
            self._depth -= 1

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        keys: set[Any] = set()
        for key_node, _ in node.value:
            if isinstance(key_node, yaml.ScalarNode) and key_node.value in keys:
                problem = f"the key {key_node.value!r} stands twice"
                raise yaml.MarkedYAMLError(problem=problem, problem_mark=key_node.start_mark)
            keys.add(key_node.value if isinstance(key_node, yaml.ScalarNode) else id(key_node))
        return super().construct_mapping(node, deep)


class _TextLoader(_DataLoader):
    """Takes every word for text as it stands, but for `null`."""

    yaml_implicit_resolvers = _reading(lambda tag: tag == _NULL)


def load_yaml(text: str, *, all_text: bool = False) -> Any:
    """Parse one YAML document.

    Args:
        all_text: numbers and `true` are text too, as if they stood in quotes.

    Raises:
        SpecError: when it does not parse, or uses what only programs need (tags, anchors).
    """
    try:
        return yaml.load(text, Loader=_TextLoader if all_text else _DataLoader)  # noqa: S506 (SafeLoaders)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
        raise SpecError([Problem(param="", message=f"not valid YAML: {where}{error.problem}")]) from None
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise SpecError([Problem(param="", message=f"not valid YAML: {error}")]) from None
