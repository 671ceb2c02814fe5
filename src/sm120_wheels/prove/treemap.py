"""One self-contained HTML page of an audit: verdicts, kernels that do not run, and a treemap of the bytes.

No script and nothing from elsewhere: the treemap is laid out here and written as SVG, so the page can be mailed,
attached to a CI run or opened from a disk. It follows the browser's dark or light setting.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from importlib import resources

from sm120_wheels.files import human_bytes
from sm120_wheels.prove.audit import Audit, Library
from sm120_wheels.prove.names import brief
from sm120_wheels.prove.render import told_cuda
from sm120_wheels.prove.verdict import CLASSES, Failure, LibraryVerdict, Verdict


@dataclass(frozen=True, kw_only=True)
class Box:
    x: float
    y: float
    width: float
    height: float


def squarify(sizes: Sequence[float], box: Box) -> list[Box]:
    """Lay out rectangles whose areas are proportional to ``sizes`` inside a box, as square as can be.

    Sizes must be positive and sorted from large to small; the boxes come back in the same order and fill the box.
    Method: Bruls, Huizing and van Wijk, "Squarified Treemaps" (2000).
    """
    boxes: list[Box] = []
    total = sum(sizes)
    rest, start = box, 0
    left = float(total)
    while start < len(sizes):
        along = min(rest.width, rest.height)
        scale = rest.width * rest.height / left
        end = start + 1
        while end < len(sizes) and _worst(sizes[start : end + 1], along, scale) <= _worst(
            sizes[start:end], along, scale
        ):
            end += 1
        row = sizes[start:end]
        thickness = sum(row) * scale / along if along else 0.0
        offset = 0.0
        for size in row:
            length = size * scale / thickness if thickness else 0.0
            if rest.width >= rest.height:
                boxes.append(Box(x=rest.x, y=rest.y + offset, width=thickness, height=length))
            else:
                boxes.append(Box(x=rest.x + offset, y=rest.y, width=length, height=thickness))
            offset += length
        if rest.width >= rest.height:
            rest = Box(x=rest.x + thickness, y=rest.y, width=max(0.0, rest.width - thickness), height=rest.height)
        else:
            rest = Box(x=rest.x, y=rest.y + thickness, width=rest.width, height=max(0.0, rest.height - thickness))
        left -= sum(row)
        start = end
    return boxes


def _worst(row: Sequence[float], along: float, scale: float) -> float:
    """The worst ratio of sides in a row of rectangles; at least 1."""
    thickness = sum(row) * scale / along if along else 0.0
    if not thickness:
        return float("inf")
    lengths = (size * scale / thickness for size in row)
    return max(max(length / thickness, thickness / length) for length in lengths)


def to_html(results: Sequence[tuple[Audit, Sequence[Verdict], Sequence[Failure]]]) -> str:
    """The page for one or several audits."""
    title = ", ".join(f"{a.name} {a.version}".strip() for a, _, _ in results)
    body = "\n".join(part for result in results for part in _sections(*result))
    page = resources.files("sm120_wheels.prove").joinpath("page.html").read_text(encoding="utf-8")
    return page.replace("{title}", escape(title)).replace("{body}", body)


def _sections(audit: Audit, verdicts: Sequence[Verdict], failed: Sequence[Failure]) -> Iterator[str]:
    yield f"<h1>{escape(audit.name)} <small>{escape(audit.version)}</small></h1>"
    yield f'<p class="path">{escape(audit.path)}</p>'
    yield f"<p>CUDA: {escape(told_cuda(audit) or 'not told')}</p>"
    if failed:
        items = "".join(f"<li>{escape(f.what)}<pre>{escape(f.why)}</pre></li>" for f in failed)
        yield f'<section class="failed"><h2>Failed</h2><ul>{items}</ul></section>'
    yield '<div class="verdicts">' + "".join(_card(v) for v in verdicts) + "</div>"
    yield _treemap(audit, verdicts[0] if verdicts else None)
    yield _libraries(audit)
    for verdict in verdicts:
        yield from _details(verdict)


_WORDS = {
    "runs": "runs",
    "unread": "not known: traps not looked for",
    "part": "runs in part",
    "none": "does not run",
    "no-cuda": "no GPU code",
}


def _card(verdict: Verdict) -> str:
    rows = "".join(f"<tr><td>{c}</td><td>{verdict.total(c)}</td></tr>" for c in CLASSES if verdict.total(c))
    dead = f"<p>{human_bytes(verdict.dead_bytes)} dead weight</p>" if verdict.dead_bytes else ""
    return (
        f'<div class="card {verdict.answer}" data-target="{verdict.target}" data-verdict="{verdict.answer}">'
        f"<h2>{verdict.target}</h2><p><b>{_WORDS[verdict.answer]}</b></p><table>{rows}</table>{dead}</div>"
    )


def _treemap(audit: Audit, verdict: Verdict | None) -> str:
    libraries = sorted((lib for lib in audit.libraries if lib.bytes), key=lambda lib: -lib.bytes)
    if not libraries:
        return "<p>No libraries.</p>"
    width, height = 1200.0, 520.0
    judged = {lib.path: lib for lib in verdict.libraries} if verdict else {}
    shapes = []
    boxes = squarify([float(lib.bytes) for lib in libraries], Box(x=0, y=0, width=width, height=height))
    for lib, box in zip(libraries, boxes, strict=True):
        shapes.append(_library_shapes(lib, box, judged.get(lib.path)))
    which = f" on {verdict.target}" if verdict else ""
    return (
        f"<h2>Where the bytes are</h2><p><span class='key live'></span> runs{which} "
        "<span class='key dead'></span> never runs there <span class='key host'></span> host code and data</p>"
        f'<svg id="treemap" viewBox="0 0 {width:g} {height:g}" role="img" '
        'aria-label="Sizes by library and architecture">' + "".join(shapes) + "</svg>"
    )


def _library_shapes(lib: Library, box: Box, judged: LibraryVerdict | None) -> str:
    sizes: dict[str, int] = {}
    for image in lib.images:
        key = image.target + (" (for linking)" if image.linkable else "")
        sizes[key] = sizes.get(key, 0) + image.bytes
    host = lib.bytes - sum(sizes.values())
    if host > 0:
        sizes["host"] = host
    order = sorted(sizes.items(), key=lambda item: -item[1])
    shapes = []
    parts = squarify([float(size) for _, size in order if size > 0], box)
    for (name, size), part in zip([o for o in order if o[1] > 0], parts, strict=True):
        dead = judged.dead.get(name, 0) if judged else 0
        kind = "host" if name == "host" else "dead" if dead * 2 > size else "live"
        label = f"{lib.path} · {name} · {human_bytes(size)}"
        text = ""
        if part.width > 70 and part.height > 30:
            text = (
                f'<text x="{part.x + 6:.1f}" y="{part.y + 17:.1f}">{escape(_fit(name, part.width))}</text>'
                f'<text class="size" x="{part.x + 6:.1f}" y="{part.y + 31:.1f}">{human_bytes(size)}</text>'
            )
        shapes.append(
            f'<g class="{kind}"><title>{escape(label)}</title><rect x="{part.x:.2f}" y="{part.y:.2f}" '
            f'width="{part.width:.2f}" height="{part.height:.2f}"/>{text}</g>'
        )
    name = ""
    if box.width > 90 and box.height > 50:
        name = (
            f'<text class="lib" x="{box.x + 6:.1f}" y="{box.y + box.height - 8:.1f}">'
            f"{escape(_fit(lib.path.rpartition('/')[2], box.width))}</text>"
        )
    outline = (
        f'<rect class="outline" x="{box.x:.2f}" y="{box.y:.2f}" width="{box.width:.2f}" height="{box.height:.2f}"/>'
    )
    return f'<g data-library="{escape(lib.path)}">{"".join(shapes)}{outline}{name}</g>'


def _fit(text: str, width: float) -> str:
    room = max(3, int(width / 7.5))
    return text if len(text) <= room else text[: room - 1] + "…"


def _libraries(audit: Audit) -> str:
    rows = []
    for lib in audit.libraries:
        code: dict[str, tuple[int, int]] = {}
        for image in lib.images:
            kernels, size = code.get(image.target, (0, 0))
            code[image.target] = (kernels + len(image.kernels), size + image.bytes)
        listed = "<br>".join(f"{t}: {k} kernels, {human_bytes(s)}" for t, (k, s) in sorted(code.items()))
        host = lib.host
        versions = ", ".join(f"{k} {v}" for k, v in host.versions.items()) if host else ""
        compilers = ", ".join(sorted({i.compiler for i in lib.images if i.compiler}))
        rows.append(
            f"<tr><td>{escape(lib.path)}</td><td>{human_bytes(lib.bytes)}</td><td>{listed}</td><td>{compilers}</td>"
            f"<td>{escape(', '.join(host.needed) if host else '')}</td><td>{versions}</td></tr>"
        )
    return (
        "<h2>Libraries</h2><table class='wide'><thead><tr><th>library<th>size<th>GPU code<th>compiler<th>needs"
        f"<th>symbol versions</tr></thead><tbody>{''.join(rows)}</tbody></table>"
    )


#: Names listed for each library; the JSON has them all.
_LISTED = 400


def _details(verdict: Verdict) -> Iterator[str]:
    for lib in verdict.loaded:
        if lib.traps:
            texts = [
                f"<code>{escape(brief(t.kernel, 400))}</code><br>{t.reason}"
                f"{': ' + escape(t.message) if t.message else ''}"
                f"{' — allowed: ' + escape(t.allowed) if t.allowed else ''}"
                f"{' — replaced by <code>' + escape(brief(t.twin, 400)) + '</code>' if t.twin else ''}"
                for t in lib.traps
            ]
            yield _list(f"{verdict.target}: {len(texts)} traps in {lib.path}", texts)
        if lib.absent and lib.runnable:
            texts = [f"<code>{escape(brief(k, 400))}</code>" for k in lib.absent]
            allowed = f" (allowed: {lib.absence_allowed})" if lib.absence_allowed else ""
            yield _list(f"{verdict.target}: {len(texts)} kernels without code in {lib.path}{allowed}", texts)
        elif lib.absent:
            yield f"<p>{verdict.target}: nothing for it in {escape(lib.path)} ({len(lib.absent)} kernels)</p>"


def _list(title: str, texts: Sequence[str]) -> str:
    counted = Counter(texts)
    items = [f"<li>{text}{f' ×{n}' if n > 1 else ''}</li>" for text, n in list(counted.items())[:_LISTED]]
    if len(counted) > _LISTED:
        items.append(f"<li>and {len(counted) - _LISTED} more</li>")
    return f"<details><summary>{escape(title)}</summary><ul>{''.join(items)}</ul></details>"
