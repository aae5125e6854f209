"""Names in charts: Plotly reads markup in them, and must show it as text."""

import pytest

from service.web.assets import Assets
from tests.support.browser import Visit

pytestmark = [pytest.mark.web]

NAMES = [
    "<b>bold</b>", "one<br>two", "x<sup>2</sup>", '<img src="https://example.org/x">', '<a href="https://example.org">l</a>',
    "a & b &lt;c&gt; &amp;", "1 < 2 > 0", "<script>alert(1)</script>", "%{y} $x^2$",
]  # fmt: skip

DRAW = """async ([url, names, hovermode]) => {
  const { draw } = await import(url);
  const frame = document.createElement("div");
  frame.style = "width:1200px;height:700px";
  document.body.prepend(frame);
  const style = { type: "scatter", hovertemplate: "%{y}" };
  const traces = names.map((name, n) => ({ x: [1, 2, 3], y: [n, n + 1, n + 2], name, ...style }));
  const title = { text: names[0] };
  await draw(frame, traces, { showlegend: true, hovermode, xaxis: { title }, yaxis: { title } });
  const texts = (selector) => [...frame.querySelectorAll(selector)].map((one) => one.textContent);
  const shown = { legend: texts(".legend .legendtext"), titles: texts(".xtitle, .ytitle") };
  window.Plotly.Fx.hover(frame, { xval: 2 });
  shown.hover = texts(hovermode === "x" ? ".hovertext .name" : ".hoverlayer .legendtext");
  shown.links = frame.querySelectorAll("a, image, script").length;
  return shown;
}"""


@pytest.mark.parametrize("hovermode", ["x", "x unified"])
def test_names_with_markup_are_shown_literally(visit: Visit, hovermode: str) -> None:
    page = visit.go("/compare")
    shown = page.evaluate(DRAW, [Assets().url("plotly.js"), NAMES, hovermode])
    assert shown["legend"] == NAMES
    assert shown["titles"] == [NAMES[0], NAMES[0]]
    assert len(shown["hover"]) == len(NAMES)
    assert all(any(name in text for text in shown["hover"]) for name in NAMES), shown["hover"]
    assert shown["links"] == 0


def test_long_names_are_shortened_at_whole_characters(visit: Visit) -> None:
    page = visit.go("/compare")
    shown = page.evaluate(DRAW, [Assets().url("plotly.js"), ["\U0001f600" * 61, "&" * 61], "x"])
    assert shown["legend"] == ["\U0001f600" * 59 + "…", "&" * 59 + "…"]
