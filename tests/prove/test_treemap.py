from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sm120_wheels.prove.treemap import Box, squarify
from tests.prove.conftest import Said, Samples

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--virtual-time-budget=2000",
)  # fmt: skip

#: Run by the browser in a copy of the page: what it drew, as text at the end of the document.
MEASURE = """<pre id="measured"></pre><script>
const box = e => { const r = e.getBoundingClientRect(); return [r.x, r.y, r.width, r.height]; };
document.getElementById("measured").textContent = JSON.stringify({
  svg: box(document.getElementById("treemap")),
  parts: [...document.querySelectorAll("#treemap g > title")].map(t => [t.textContent, box(t.nextElementSibling)]),
  cards: [...document.querySelectorAll(".card")].map(c => [c.dataset.target, c.dataset.verdict, c.innerText]),
  requests: performance.getEntriesByType("resource").map(r => r.name),
});
</script>"""


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.floats(min_value=1, max_value=1e9), min_size=1, max_size=40),
    st.floats(min_value=10, max_value=2000),
    st.floats(min_value=10, max_value=2000),
)
def test_rectangles_fill_the_box_in_proportion_and_do_not_overlap(
    sizes: list[float], width: float, height: float
) -> None:
    sizes.sort(reverse=True)
    boxes = squarify(sizes, Box(x=0, y=0, width=width, height=height))
    assert len(boxes) == len(sizes)
    area, total = width * height, sum(sizes)
    for size, box in zip(sizes, boxes, strict=True):
        assert box.width * box.height == pytest.approx(size / total * area, rel=1e-6, abs=area * 1e-9)
        assert box.x >= -1e-6 and box.x + box.width <= width * (1 + 1e-6)
        assert box.y >= -1e-6 and box.y + box.height <= height * (1 + 1e-6)
    for i, one in enumerate(boxes):
        for other in boxes[i + 1 :]:
            across = min(one.x + one.width, other.x + other.width) - max(one.x, other.x)
            down = min(one.y + one.height, other.y + other.height) - max(one.y, other.y)
            assert max(across, 0) * max(down, 0) <= area * 1e-6


@pytest.mark.cuda
@pytest.mark.network
@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine: the page was not opened")
def test_a_browser_shows_the_page_as_it_is_meant(
    samples: Samples, packed: Callable[..., Path], sm120: Callable[..., Said], tmp_path: Path
) -> None:
    wheel = packed({"tiny/<multi>.so": samples["libmulti.so"], "tiny/libtraps.so": samples["libtraps.so"]})
    page = tmp_path / "page.html"
    said = sm120("audit", wheel, "--target", "12.0", "--target", "12.1", "--html", page)
    assert said.code == 66
    text = page.read_text(encoding="utf-8")
    assert not re.search(r"<script|https?://|src=|@import|url\(", text)  # nothing from elsewhere
    copy = tmp_path / "measured.html"
    copy.write_text(text.replace("</body>", MEASURE + "</body>"), encoding="utf-8")
    assert CHROMIUM is not None
    shown = subprocess.run(
        [CHROMIUM, *FLAGS, f"--user-data-dir={tmp_path / 'profile'}", "--dump-dom", copy.as_uri()],
        capture_output=True, text=True, check=True, timeout=120,
    ).stdout  # fmt: skip
    match = re.search(r'<pre id="measured">(.*?)</pre>', shown, re.DOTALL)
    assert match
    measured = json.loads(match[1].replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&"))
    assert measured["requests"] == []
    assert [(t, v) for t, v, _ in measured["cards"]] == [("12.0", "part"), ("12.1", "none")]
    assert "runs in part" in measured["cards"][0][2]
    x, y, width, height = measured["svg"]
    assert width > 400 and height > 100
    drawn = 0.0
    names = []
    for name, (left, top, across, down) in measured["parts"]:
        assert left >= x - 1 and top >= y - 1 and left + across <= x + width + 1 and top + down <= y + height + 1, name
        drawn += across * down
        names.append(name)
    assert drawn == pytest.approx(width * height, rel=0.03)
    assert any(n.startswith("tiny/<multi>.so · sm_120a") for n in names)
