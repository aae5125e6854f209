"""axe on a page: all rules in the light theme, and the rules about colours in the dark one."""

from axe_playwright_python.base import AxeResults  # type: ignore[import-untyped]
from axe_playwright_python.sync_playwright import Axe  # type: ignore[import-untyped]
from playwright.sync_api import Page

_ALL = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa"]
_OF_COLOURS = ["color-contrast", "link-in-text-block"]
"""The rules for what differs between the themes."""
_RULES = {"light": _ALL, "dark": _OF_COLOURS}
_RUN = "([within, options]) => axe.run(within ?? document, options)"


def violations(page: Page, within: str | None = None) -> list[str]:
    """Return the violations of WCAG 2.1 AA that axe finds on a page, in the light and in the dark theme.

    `within` is the selector of a part, where other tests cover the rest of the page.
    """
    problems: list[str] = []
    select = page.locator("#theme")  # in a menu
    chosen = select.input_value()
    axe = Axe()
    page.evaluate(axe.axe_script)
    for theme, rules in _RULES.items():
        select.select_option(theme, force=True)
        # Colours that change slowly would be measured in between.
        page.wait_for_function("() => document.getAnimations().every(one => !(one instanceof CSSTransition))")
        report = AxeResults(page.evaluate(_RUN, [within, {"runOnly": rules, "resultTypes": ["violations"]}]))
        if report.violations_count:
            problems.append(f"{page.url}, {theme}: {report.generate_report()}")
    select.select_option(chosen, force=True)  # tabs of one profile share it
    return problems


def assert_accessible(page: Page, within: str | None = None) -> None:
    """Fail with all violations in both themes."""
    problems = violations(page, within)
    assert not problems, "\n".join(problems)
