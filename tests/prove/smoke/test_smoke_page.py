"""The page of a run, in a real browser, with and without JavaScript."""

from __future__ import annotations

from playwright.sync_api import Browser, Page

from sm120_wheels.files import write_text
from sm120_wheels.prove.smoke.page import to_html
from tests.prove.smoke.conftest import Ran
from tests.support.browser import browser as browser
from tests.support.browser import context as new_context


def opened(browser: Browser, demo: Ran, *, scheme: str = "light", script: bool = True) -> Page:
    context = new_context(
        browser,
        color_scheme="dark" if scheme == "dark" else "light",
        java_script_enabled=script,
        viewport={"width": 1280, "height": 900},
    )
    page = context.new_page()
    page.goto((demo.folder / "page.html").as_uri())
    return page


def test_failures_come_first_with_reason_and_stack_and_the_filter_narrows(browser: Browser, demo: Ran) -> None:
    page = opened(browser, demo)
    problems: list[str] = []
    page.on("pageerror", lambda error: problems.append(str(error)))
    counts = demo.record["counts"]
    assert page.locator("tr.case:visible").count() == sum(counts.values())
    assert page.locator("tr.case").first.get_attribute("data-state") == "failed"
    for name, state in (("failed", "failed"), ("not run", "not_run"), ("passed", "passed")):
        page.get_by_role("button", name=name, exact=True).click()
        assert page.locator("tr.case:visible").count() == counts[state]
    page.get_by_role("button", name="all", exact=True).click()
    row = page.locator("tr.case", has_text="test_hangs_in_native_code")
    assert "sleeps_in_c" in row.locator("pre").first.inner_text()
    assert problems == []


def test_it_reads_without_javascript_and_loads_nothing_from_elsewhere(browser: Browser, demo: Ran) -> None:
    page = opened(browser, demo, script=False)
    assert page.locator("tr.case:visible").count() == sum(demo.record["counts"].values())
    assert not page.locator("nav").first.is_visible()
    text = (demo.folder / "page.html").read_text()
    assert "http://" not in text.replace("http://127.0.0.1", "")
    assert "https://" not in text


def test_it_has_a_dark_and_a_light_ground(browser: Browser, demo: Ran) -> None:
    grounds = [
        opened(browser, demo, scheme=scheme).evaluate("getComputedStyle(document.body).backgroundColor")
        for scheme in ("light", "dark")
    ]
    assert grounds == ["rgb(255, 255, 255)", "rgb(20, 22, 26)"]


def test_what_a_case_says_is_text_never_markup(browser: Browser, demo: Ran) -> None:
    record = demo.record
    record["cases"][0] |= {"state": "failed", "why": "<img src=x onerror=document.title='owned'>"}
    write_text(demo.folder / "hostile.html", to_html([record]))
    page = new_context(browser).new_page()
    page.goto((demo.folder / "hostile.html").as_uri())
    assert page.locator("img").count() == 0
    assert "owned" not in page.title()
