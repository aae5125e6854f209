"""Pages: the embedded JSON and the preloaded scripts."""

import json
import re
from pathlib import Path

import pytest
from fastapi import Request

import service.web
from service.auth.principals import Principal
from service.web.assets import Assets
from service.web.rendering import Pages, Visitor, format_pairs
from trainyard.contract.wire.cluster import MaintenanceResource

STATIC = Path(service.web.__file__).parent / "static"
FOLDERS = (STATIC, *STATIC.parents[1].glob("plugins/*/static"))
SCRIPTS = {path.name: path for folder in FOLDERS for path in folder.glob("*.js")}
VISITOR = Visitor(Principal("user", "1", "ada", "admin"), "secret")
HOSTILE = "</script><script>alert('1')</script><!-- & \u2028\u2029 </SCRIPT>"


def test_embedded_json_cannot_end_its_element() -> None:
    data = {"jobs": [{"name": HOSTILE}], "has_more": False, "last_id": None}
    response = Pages(lambda: MaintenanceResource(active=False)).render(
        "jobs.html",
        VISITOR,
        may_submit=True,
        statuses=(),
        groups=(),
        search="",
        where="",
        only_archived=False,
        created_by="",
        data=data,
    )
    page = bytes(response.body).decode()
    (embedded,) = re.findall(r'<script type="application/json" id="page-data">(.*?)</script>', page, re.DOTALL)
    assert not re.search("[<>&'\u2028\u2029]", embedded)
    assert json.loads(embedded)["data"] == data


def test_details_are_key_value_pairs() -> None:
    details = {"force": True, "name": None, "set": {"optimizer.lr": 0.1}, "ranks": [0, 1]}
    assert format_pairs(details) == "force: yes, name: none, set: (optimizer.lr: 0.1), ranks: 0 1"


def test_scripts_are_files_and_never_inline() -> None:
    for template in STATIC.parents[1].glob("**/templates/*.html"):
        for attributes, body in re.findall(r"<script([^>]*)>(.*?)</script>", template.read_text(), re.DOTALL):
            assert "application/json" in attributes or not body, template.name
        assert not re.search(r"\son\w+=", template.read_text()), template.name


@pytest.mark.parametrize("script", sorted(SCRIPTS))
def test_all_imports_of_a_script_are_preloaded(script: str) -> None:
    preloaded = Assets().imports(script)
    for name in (script, *preloaded):
        modules = re.findall(r"from \"\./(.+?)\"|^import \"\./(.+?)\"", SCRIPTS[name].read_text(), re.MULTILINE)
        assert {one or other for one, other in modules} <= {script, *preloaded}, name
    assert preloaded == [name for name in preloaded if name in SCRIPTS]


def test_a_module_is_preloaded_if_its_import_spans_lines(tmp_path: Path) -> None:
    (tmp_path / "page.js").write_text('import {\n  first,\n  second,\n} from "./parts.js";\nimport "./keys.js";\n')
    for name in ("parts.js", "keys.js"):
        (tmp_path / name).write_text("")
    assert Assets([tmp_path]).imports("page.js") == ["parts.js", "keys.js"]


def test_no_script_parses_text_as_html() -> None:
    for path in SCRIPTS.values():
        assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write", path.read_text()), path.name


@pytest.mark.parametrize("script", ["job.js", "jobs.js", "compare.js"])
def test_scripts_of_a_page_with_charts_stay_small(script: str) -> None:
    """Those that a page reads at first; a tab reads its own when it is shown."""
    assets = Assets()
    names = {"theme.js", *(name for one in (script, "shortcuts.js") for name in (one, *assets.imports(one)))}
    library = (STATIC / "vendor" / "uplot" / "uPlot.iife.min.js").stat().st_size
    sizes = [len(asset.body) for asset in (assets.get("", name) for name in names) if asset is not None]
    assert len(sizes) == len(names)
    assert sum(sizes) + library < 300_000


def test_scripts_and_styles_of_plugins_have_names_of_their_own() -> None:
    names = [path.name for folder in FOLDERS for path in folder.iterdir() if path.is_file()]
    assert len(names) == len(set(names))
    assert "models.css" in names
    assets = Assets()
    assert all(assets.get("any", name) for name in names if not name.endswith(".md"))
    templates = [path.name for path in STATIC.parents[1].glob("**/templates/*.html")]
    assert len(templates) == len(set(templates))


def test_error_whose_status_is_not_standard_has_a_page() -> None:
    request = Request({"type": "http", "method": "GET", "path": "/jobs", "headers": []})
    response = Pages(lambda: MaintenanceResource(active=False)).error(request, 499, "the client disconnected")
    assert (response.status_code, "the client disconnected" in bytes(response.body).decode()) == (499, True)
