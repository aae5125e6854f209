"""axe on a page in each theme."""

from axe_playwright_python.sync_playwright import Axe  # type: ignore[import-untyped]
from playwright.sync_api import Page

_RULES = {"runOnly": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa"], "resultTypes": ["violations"]}


def violations(page: Page) -> list[str]:
    """Return the violations of WCAG 2.1 AA that axe finds on a page, in the light and in the dark theme."""
    problems: list[str] = []
    chosen = page.get_by_label("Theme").input_value()
    for theme in ("light", "dark"):
        page.get_by_label("Theme").select_option(theme)
        # Colours that change slowly would be measured in between.
        page.wait_for_function("() => document.getAnimations().every(one => !(one instanceof CSSTransition))")
        report = Axe().run(page, options=_RULES)
        if report.violations_count:
            problems.append(f"{page.url}, {theme}: {report.generate_report()}")
    page.get_by_label("Theme").select_option(chosen)  # tabs of one profile share it
    return problems


def assert_accessible(page: Page) -> None:
    """Fail with all violations in both themes."""
    problems = violations(page)
    assert not problems, "\n".join(problems)
