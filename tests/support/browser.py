"""A real browser, for tests of pages: Chromium, where there is one."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import Browser, BrowserContext, sync_playwright

_FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    binary = os.environ.get("SM120_CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome")
    if not binary:
        pytest.skip("not run: no Chromium here (SM120_CHROMIUM names one)")
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=binary, args=_FLAGS)
        yield started
        started.close()


def context(browser: Browser, **options: Any) -> BrowserContext:
    """A new context that waits as long as a loaded machine needs."""
    made = browser.new_context(**options)
    made.set_default_timeout(120_000)
    return made
