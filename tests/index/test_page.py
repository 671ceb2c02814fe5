"""The pages for people, in a real browser."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page

from sm120_wheels.index.maintain import yank
from sm120_wheels.index.publish import Options, publish
from tests.index.makewheel import beside, make_wheel
from tests.index.serving import served
from tests.support.browser import browser as browser
from tests.support.browser import context as new_context


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("page")
    passed = make_wheel(
        folder,
        "sglang-kernel",
        "0.4.4+cu130.torch211.sm120a",
        requires_dist=("torch==2.11.*",),
        build={"archs": ["12.0a"], "cuda": "13.0", "torch": "2.11.0", "without": ["flash_ops"]},
    )
    beside(passed, "smoke", state="passed", gpu={"name": "NVIDIA GeForce RTX 5090", "driver": "580.95"})
    failed = make_wheel(folder, "sglang-kernel", "0.4.5+cu130.torch211.sm120a", summary="<b onclick='x()'>bold</b>")
    beside(failed, "smoke", state="failed", gpu="NVIDIA RTX PRO 6000", reason="all zeros for M=17")
    other = make_wheel(folder, "sm120-selftest", "0.1.0+cu128.torch28.sm120a")
    root = folder / "index"
    publish(root, [passed, failed, other], options=Options(allow=frozenset({"partial", "smoke"})))
    yank(root, "sm120-selftest", reason="wrong FP4")
    with served(root) as found:
        yield found


@pytest.fixture
def page(browser: Browser, address: str) -> Iterator[Page]:
    context = new_context(browser, viewport={"width": 1280, "height": 900})
    context.grant_permissions(["clipboard-read", "clipboard-write"])
    opened = context.new_page()
    problems: list[str] = []
    opened.on("console", lambda message: problems.append(message.text))
    opened.on("pageerror", lambda error: problems.append(str(error)))
    opened.goto(address)
    yield opened
    context.close()
    assert problems == []


def rows(page: Page) -> list[str]:
    return [" ".join(r.inner_text().split()) for r in page.locator("tr.wheel:visible").all()]


def test_every_wheel_is_a_row_with_its_verdicts_in_words(page: Page) -> None:
    text = rows(page)
    assert len(text) == 3
    assert "0.4.5 +cu130.torch211.sm120a" in text[0]
    assert "failed on NVIDIA RTX PRO 6000" in text[0]
    assert "passed on NVIDIA GeForce RTX 5090 · driver 580.95" in text[1]
    assert "partial" in text[1]
    assert "12.8" in text[2]
    assert "yanked" in text[2]
    assert "not run" in text[2]


def test_typing_filters_and_the_address_keeps_the_filter(page: Page) -> None:
    page.keyboard.press("/")
    page.keyboard.type("cu130 passed")
    assert len(rows(page)) == 1
    assert page.locator("#count").inner_text() == "1 of 3"
    page.reload()
    assert len(rows(page)) == 1
    page.fill("#filter", "nosuchthing")
    assert rows(page) == []
    assert page.locator("#nothing").is_visible()
    page.click("#clear")
    assert len(rows(page)) == 3


#: Promises in ``next`` what a button will say next.
_NEXT_TEXT = """button => {
  window.next = new Promise(tell => {
    new MutationObserver(() => tell(button.textContent)).observe(button, { childList: true });
  });
}"""


def test_a_chosen_row_gives_commands_that_are_copied_exactly(page: Page, address: str) -> None:
    page.click("tr.wheel:nth-of-type(3) .version")
    panel = page.locator("tr.detail.shown")
    assert panel.count() == 1
    commands = panel.locator("pre").all_inner_texts()
    version = "sglang-kernel==0.4.4+cu130.torch211.sm120a"
    assert commands[0] == f'pip install "{version}" --extra-index-url {address}cu130/'
    assert commands[1] == f'uv pip install "{version}" --index {address}cu130/'
    assert commands[2].splitlines()[1].startswith(f"{version} --hash=sha256:")
    button = panel.get_by_role("button", name="Copy the uv command")
    button.evaluate(_NEXT_TEXT)  # it says so for two seconds only
    button.click()
    assert page.evaluate("next") == "Copied"
    assert page.evaluate("navigator.clipboard.readText()") == commands[1]
    page.click("tr.wheel:nth-of-type(3) .opener")
    assert page.locator("tr.detail.shown").count() == 0


def test_a_row_can_be_linked_to(page: Page) -> None:
    page.locator(".opener").first.click()
    link = page.url
    assert "#w-" in link
    page.goto("about:blank")
    page.goto(link)
    assert page.locator("tr.detail.shown").count() == 1
    assert "all zeros for M=17" in page.locator("tr.detail.shown").inner_text()


def test_evidence_is_linked_and_served(page: Page) -> None:
    page.locator(".opener").first.click()
    for link in page.locator("tr.detail.shown dd a").all():
        answer = page.request.get(link.evaluate("a => a.href"))
        assert answer.status == 200


def test_metadata_is_text_on_the_page(page: Page) -> None:
    page.locator(".opener").first.click()
    assert "<b onclick='x()'>bold</b>" in page.locator("tr.detail.shown").inner_text()
    assert page.locator("tr.detail b").count() == 0


def test_page_of_a_project_lists_its_wheels(page: Page) -> None:
    with page.expect_navigation():
        page.locator("ul.packages a", has_text="sglang-kernel").click()
    assert page.locator("h1").inner_text() == "sglang-kernel"
    assert len(rows(page)) == 2


def test_it_is_a_table_with_working_links_without_javascript(browser: Browser, address: str) -> None:
    context = new_context(browser, java_script_enabled=False)
    opened = context.new_page()
    opened.goto(address)
    assert len(rows(opened)) == 3
    assert not opened.locator("#filter").is_visible()
    assert opened.locator("tr.detail:visible").count() == 0
    opened.locator(".opener").nth(1).click()
    assert "pip install" in opened.locator("tr.detail:visible").inner_text()
    assert "stands for the address of this index" in opened.locator("main").inner_text()
    context.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_can_be_read_in_light_and_dark(browser: Browser, address: str, scheme: str) -> None:
    context = new_context(browser, color_scheme="dark" if scheme == "dark" else "light")
    opened = context.new_page()
    opened.goto(address)
    opened.locator(".opener").first.click()
    low = opened.evaluate(_LOW_CONTRAST)
    ground = opened.evaluate("getComputedStyle(document.body).backgroundColor")
    context.close()
    assert low == []
    assert ground == ("rgb(20, 23, 27)" if scheme == "dark" else "rgb(255, 255, 255)")


@pytest.mark.parametrize("width", [320, 400, 768, 1024])
def test_nothing_sticks_out_on_narrow_screens(browser: Browser, address: str, width: int) -> None:
    context = new_context(browser, viewport={"width": width, "height": 900})
    opened = context.new_page()
    opened.goto(address)
    opened.locator(".opener").first.click()
    wider = opened.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
    context.close()
    assert wider <= 0


#: Every text whose contrast with its ground is below 4.5, the least that WCAG AA asks for.
_LOW_CONTRAST = """() => {
  const numbers = (colour) => colour.match(/[0-9.]+/g).map(Number);
  const light = (colour) => {
    const [r, g, b] = colour.slice(0, 3).map((v) => (v /= 255) <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const ground = (element) => {
    for (let e = element; e; e = e.parentElement) {
      const colour = numbers(getComputedStyle(e).backgroundColor);
      if (colour.length === 3 || colour[3] === 1) return colour;
    }
    return [255, 255, 255];
  };
  const found = [];
  for (const element of document.querySelectorAll("main *")) {
    const own = [...element.childNodes].some((n) => n.nodeType === 3 && n.textContent.trim());
    if (!own || !element.checkVisibility()) continue;
    const [a, b] = [light(numbers(getComputedStyle(element).color)), light(ground(element))].sort((x, y) => y - x);
    const contrast = (a + 0.05) / (b + 0.05);
    if (contrast < 4.5) found.push([element.textContent.trim().slice(0, 40), contrast.toFixed(2)]);
  }
  return found;
}"""


@pytest.mark.parametrize(
    ("verdicts", "allowed", "badge"),
    [
        ({"12.0": "runs", "12.1": "none"}, False, ">runs on 12.0</a>"),
        ({"12.0": "part", "12.1": "none"}, True, 'class="badge part"'),
        ({"12.0": "unread", "12.1": "none"}, True, 'class="badge not-run"'),
        ({"12.0": "none", "12.1": "none"}, True, 'class="badge failed"'),
        ({"12.0": "none", "12.1": "runs"}, True, ">only on 12.1</a>"),
    ],
)
def test_an_audit_that_did_not_pass_never_looks_like_one(
    root: Path, dist: Path, verdicts: dict[str, str], allowed: bool, badge: str
) -> None:
    wheel = make_wheel(dist, audit=verdicts)
    publish(root, [wheel], options=Options(allow=frozenset({"audit"} if allowed else ())))
    page = (root / "index.html").read_text()
    assert badge in page
    assert ('class="badge passed"' in page) is not allowed


def test_front_page_of_many_wheels_says_what_it_leaves_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from sm120_wheels.index import page as pages

    monkeypatch.setattr(pages.newest, "__defaults__", (2,))
    publish(tmp_path / "index", [make_wheel(tmp_path, f"tiny-{i}", "1.0+cu130.sm120a") for i in range(3)])
    text = (tmp_path / "index" / "index.html").read_text()
    assert text.count('<tr class="wheel"') == 2
    assert "These are the 2 last published of 3 wheels" in text
    assert text.count("packages/tiny-") == 5
