"""Generate docs/api-reference.md from the OpenAPI document: `python -m tests.support.api_reference`."""

import inspect
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import Any, get_origin, get_type_hints
from urllib.parse import quote

from service.api.app import create_api
from service.api.dependencies import AppState
from service.api.openapi import common_errors
from service.core.settings import Settings
from service.db.engine import Database
from service.plugins.installed import PLUGINS
from tests.support.api_calls import METHODS, SNIPPETS, client_method
from trainyard.contract.base import EXAMPLE_JOB
from trainyard.contract.spec.reference import escaped, kind_of, table

HEAD = """# Every route

`make docs` generates this page from the routes and their models; do not edit it. [api.md](api.md) explains how they
work together. A list has pages of `data`, `first_id`, `last_id` and `has_more`; `?after=<last_id>` requests the next.

The examples use `$URL`, the address of the service, and `$TOKEN`, an API token. In Python:

```python
from trainyard import Client

client = Client(url, token)  # on the machine of the service, Client() reads both from its files
headers = {"Authorization": f"Bearer {token}"}  # for the few routes that the client has no call for
```

`spec` is a mapping, YAML or the name of a preset. Parts of paths are variables, in the shell in capitals:

| variable | value |
|---|---|
"""
ERRORS = """
## Errors

Every route can answer with these errors, whose body is an [ErrorEnvelope](#errorenvelope).

| status | `type` | meaning | example of `code` |
|---|---|---|---|
"""
TAGS = {
    "jobs": "Jobs",
    "views": "Runs table",
    "projects": "Projects",
    "sweeps": "Sweeps",
    "metrics": "Metrics",
    "logs": "Logs",
    "streams": "Streams",
    "checkpoints": "Checkpoints and exports",
    "artifacts": "Artifacts",
    "media": "Media",
    "files": "Files",
    "models": "Models",
    "plans": "Plans",
    "templates": "Presets",
    "code": "Code",
    "cluster": "The cluster",
    "usage": "Disk use",
    "access": "Access",
    "worker": "Workers",
    "health": "Health",
}
"""Titles of the tags, in the order of the page."""
PLACEHOLDERS = {
    EXAMPLE_JOB: "job_id",
    "MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY": "nonce",
    "MUNGE:AwQFAACj:": "credential",
}
"""Variables that stand for values of an example."""
JSON_TYPE, WIDTH = "application/json", 118
FILES = {"application/octet-stream": "part", "application/x-tar": "code.tar", "multipart/form-data": "chat.jsonl"}
"""The file that an example sends, by the type of the body."""

Schema = dict[str, Any]


def openapi_document() -> Schema:
    """Return the document of an application that has no service."""
    with tempfile.TemporaryDirectory() as folder:
        settings = Settings(state_dir=Path(folder))
        state = AppState(settings, Database(f"sqlite:///{folder}/none"), lambda: datetime.now(UTC))
        return create_api(state, PLUGINS).openapi()


@dataclass(frozen=True)
class Operation:
    """One method of one route, as the document describes it."""

    verb: str
    path: str
    described: Schema
    schemas: Schema

    @property
    def id(self) -> str:
        return str(self.described["operationId"])

    @property
    def title(self) -> str:
        return f"{self.verb} {self.path}"

    @property
    def is_of_worker(self) -> bool:
        return "worker" in self.described["tags"]

    def parameters(self, location: str) -> list[Schema]:
        return [one for one in self.described.get("parameters", ()) if one["in"] == location]

    @property
    def query(self) -> Schema:
        """The values of the query parameters that have an example."""
        parameters = self.parameters("query")
        return {one["name"]: one["schema"]["examples"][0] for one in parameters if "examples" in one["schema"]}

    @cached_property
    def body(self) -> tuple[str, Any] | None:
        """The type and the example of the body."""
        content = self.described.get("requestBody", {}).get("content", {})
        for kind, one in content.items():
            references = [schema for schema in (one["schema"], *one["schema"].get("anyOf", ())) if "$ref" in schema]
            named = self.schemas[references[0]["$ref"].rpartition("/")[2]] if references else {}
            return kind, one.get("example", named.get("example"))
        return None

    @property
    def answer(self) -> tuple[str, Schema]:
        """The status and the content of the successful response."""
        status = next(status for status in self.described["responses"] if status.startswith("2"))
        return status, self.described["responses"][status].get("content", {})


def operations(document: Schema) -> list[Operation]:
    """Return the operations by tag and path."""
    schemas, order = document["components"]["schemas"], list(TAGS)
    made = [
        Operation(verb.upper(), path, described, schemas)
        for path, verbs in document["paths"].items()
        for verb, described in verbs.items()
    ]
    return sorted(made, key=lambda one: order.index(one.described["tags"][0]))


def curl(operation: Operation) -> str:
    """Return the command line of an example."""
    path = re.sub(r"\{(\w+)\}", lambda match: f"${variable(match[1]).upper()}", operation.path)
    values = [(name, one) for name, value in operation.query.items() for one in _list(value)]
    query = "&".join(f"{name}={_shell_value(one)}" for name, one in values)
    parts = [f'"$URL{path}{"?" if query else ""}{query}"']
    if operation.described["security"]:
        parts.append(f'-H "Authorization: Bearer ${"WORKER_TOKEN" if operation.is_of_worker else "TOKEN"}"')
    kind, example = operation.body or ("", None)
    if kind == JSON_TYPE:
        text = json.dumps(example, ensure_ascii=False)
        for value, name in PLACEHOLDERS.items():
            text = text.replace(f'"{value}"', f"\"'${name.upper()}'\"")
        parts += ["-H 'Content-Type: application/json'", f"-d '{text}'"]
    elif kind == "multipart/form-data":
        parts.append(f"-F file=@{FILES[kind]}")
    elif kind:
        parts += [f"-H 'Content-Type: {kind}'", f"--data-binary @{FILES[kind]}"]
    binary = any(kind in FILES for kind in operation.answer[1])
    if operation.verb == "HEAD":
        parts.insert(0, "-I")
    elif binary:
        parts = ["--fail -OJ", *parts]
    elif operation.verb != ("POST" if operation.body else "GET"):
        parts.insert(0, f"-X {operation.verb}")
    if "text/event-stream" in operation.answer[1]:
        parts.insert(0, "-N")
    line = " ".join(["curl", *parts])
    return line if len(line) <= WIDTH else line.replace(" -d '", " \\\n  -d '")


def variable(name: str) -> str:
    """Return the variable for a path parameter. `PATH` has a meaning in the shell, and `aid` says little."""
    return {"path": "file_path", "aid": "attempt_id", "name": "preset"}.get(name, name)


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _shell_value(value: Any) -> str:
    return f"${PLACEHOLDERS[value].upper()}" if value in PLACEHOLDERS else quote(str(value), safe="/")


def python(operation: Operation) -> str:
    """Return the call of an example: of the client, or of httpx where the client has none."""
    if operation.id in SNIPPETS:
        return SNIPPETS[operation.id]
    method = client_method(operation.id)
    return _http_call(operation) if method is None else _client_call(operation, method)


def _client_call(operation: Operation, name: str) -> str:
    method = METHODS[name]
    parameters = list(inspect.signature(method).parameters.values())[1:]
    _, example = operation.body or ("", None)
    given = {**operation.query, **(example if isinstance(example, dict) else {})}
    arguments = []
    paths = [variable(one["name"]) for one in operation.parameters("path")]
    for parameter in parameters:
        if paths and parameter.default is parameter.empty and parameter.kind is parameter.POSITIONAL_OR_KEYWORD:
            arguments.append(paths.pop(0))
        elif parameter.name == "spec":
            arguments.append("spec")
        elif parameter.name in given:
            value = _python_value(given[parameter.name])
            required = parameter.default is parameter.empty
            arguments.append(value if required else f"{parameter.name}={value}")
    call = f"client.{name}({', '.join(arguments)})"
    result = get_type_hints(method)["return"]
    return f"list({call})" if hasattr(get_origin(result) or result, "__aiter__") else call


def _http_call(operation: Operation) -> str:
    path = re.sub(r"\{(\w+)\}", lambda match: f"{{{variable(match[1])}}}", operation.path)
    arguments = [f'f"{{url}}{path}"']
    if operation.described["security"]:
        arguments.append(f"headers={'worker_headers' if operation.is_of_worker else 'headers'}")
    if operation.query:
        arguments.append(f"params={_python_value(operation.query)}")
    kind, example = operation.body or ("", None)
    if kind == JSON_TYPE:
        arguments.append(f"json={_python_value(example)}")
    elif kind:
        arguments.append(f'content=Path("{FILES[kind]}").read_bytes()')
    return f"httpx.{operation.verb.lower()}({', '.join(arguments)}).raise_for_status()"


def _python_value(value: Any) -> str:
    text = repr(value).replace("'", '"')
    for placeholder, name in PLACEHOLDERS.items():
        text = text.replace(f'"{placeholder}"', name)
    return text


def reference(document: Schema) -> str:
    """Return the whole page."""
    schemas = document["components"]["schemas"]
    variables = {
        variable(one["name"]): one["description"] for each in operations(document) for one in each.parameters("path")
    }
    rows = (f"| `{name}` | {text} |\n" for name, text in sorted(variables.items()))
    parts = [HEAD + "".join(rows) + ERRORS + "".join(_error_rows())]
    tag = ""
    for operation in operations(document):
        if operation.described["tags"][0] != tag:
            tag = operation.described["tags"][0]
            parts.append(f"## {TAGS[tag]}\n")
        parts += _section(operation)
    parts.append("## Types\n")
    for name in _types(document):
        schema = schemas[name]
        parts += [f"### {name}\n", f"{schema.get('description', '')}\n", table(schema, schemas)]
    page = "\n".join(parts).rstrip().replace("(#trainingspec)", "(spec.md)") + "\n"
    command = [sys.executable, "-m", "ruff", "format", "--stdin-filename", "api-reference.md", "-"]
    return subprocess.run(command, input=page, check=True, capture_output=True, text=True).stdout


def _error_rows() -> Iterator[str]:
    for status, response in sorted(common_errors().items()):
        error = response["content"][JSON_TYPE]["example"]["error"]
        yield f"| {status} | `{error['type']}` | {response['description']} | `{error['code']}` |\n"


def _section(operation: Operation) -> Iterator[str]:
    yield f"### `{operation.title}`\n"
    yield " ".join(operation.described["description"].split()) + "\n"
    parameters = [one for one in operation.described.get("parameters", ()) if one["in"] != "path"]
    if parameters:
        yield "| parameter | value | default | description |\n|---|---|---|---|"
    for one in parameters:
        name, default = one["name"], one["schema"].get("default")
        shown = "*required*" if one.get("required") else "" if default is None else f"`{json.dumps(default)}`"
        header = " (header)" if one["in"] == "header" else ""
        yield f"| `{name}`{header} | {escaped(kind_of(one['schema']))} | {shown} | {escaped(one['description'])} |"
    if parameters:
        yield ""
    status, content = operation.answer
    kinds = [_content(kind, one, operation.schemas) for kind, one in content.items()]
    sent = operation.described.get("requestBody", {}).get("content", {})
    body = [_content(kind, one, operation.schemas) for kind, one in sent.items()]
    answer = f"Answer: {', '.join([status, *([' or '.join(kinds)] if kinds else [])])}.\n"
    yield f"Body: {' or '.join(body)}. {answer}" if body else answer
    yield f"```bash\n{curl(operation)}\n```\n```python\n{python(operation)}\n```\n"


def _content(kind: str, content: Schema, schemas: Schema) -> str:
    """Return a link to the type of a body; the type of other bodies than JSON."""
    for one in (content.get("schema", {}), *content.get("schema", {}).get("anyOf", ())):
        if "$ref" in one:
            name = one["$ref"].rpartition("/")[2]
            if name.startswith("Page_"):
                return f"a page of {kind_of(schemas[name]['properties']['data']['items'])}"
            return kind_of(one) + (" as YAML" if kind.endswith("yaml") else "")
    return f"`{kind}`"


def _types(document: Schema) -> list[str]:
    """Return the names of all types that the routes use, but those of a spec, which has a page of its own."""
    schemas, shown = document["components"]["schemas"], {"TrainingSpec": False, "ErrorEnvelope": True}
    pending = [document["paths"], schemas["ErrorEnvelope"]]
    while pending:
        one = pending.pop()
        if isinstance(one, dict):
            name = one["$ref"].rpartition("/")[2] if "$ref" in one else ""
            if name and name not in shown:
                shown[name] = "properties" in schemas[name] and not name.startswith("Page_")
                pending.append(schemas[name])
            pending += one.values()
        elif isinstance(one, list):
            pending += one
    return sorted(name for name, is_shown in shown.items() if is_shown)


if __name__ == "__main__":
    sys.stdout.write(reference(openapi_document()))
