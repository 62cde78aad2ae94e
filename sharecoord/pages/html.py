"""The frame of a page, its style, and tables."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Final

STYLE: Final = """
:root{color-scheme:light dark;--fg:#1d2733;--bg:#fff;--dim:#5a6672;--line:#d9dfe5;--warn:#b93a08;
--c0:#2563eb;--c1:#d97708;--c2:#2f8a57;--c3:#7b8794;--c4:#a032e0;
--h0:#b3261e;--h1:#e2711d;--h2:#f2a541;--h3:#f3d9a4;--h4:#cfd6dd;--h5:#8fb3ee;--h6:#2b5fc4}
@media(prefers-color-scheme:dark){:root{--fg:#dfe6ee;--bg:#14191f;--dim:#9aa8b6;--line:#303a45;
--warn:#ff9a62;--c0:#4d86ff;--c1:#f0a04a;--c2:#5bb884;--c3:#98a4b0;--c4:#c583f7;
--h0:#e5534b;--h1:#d9772b;--h2:#b98034;--h3:#7d6a45;--h4:#46505b;--h5:#3f64a3;--h6:#6f9dff}}
body{font:15px/1.5 system-ui,sans-serif;color:var(--fg);background:var(--bg);
max-width:1200px;margin:2rem auto;padding:0 1rem}
h1{font-size:1.5rem}h2{font-size:1.15rem;margin-top:2.2rem}h3{font-size:1rem;margin:1.6rem 0 .4rem}
a{color:inherit}.verdicts{padding-left:1.2rem;overflow-wrap:anywhere}.verdicts>li{margin:.5rem 0}
dt{font-weight:600}dd{margin:0 0 .6rem}dl{max-width:48rem}
p.note{color:var(--dim);overflow-wrap:anywhere}strong.warn{color:var(--warn)}
.wide{overflow-x:auto}table{border-collapse:collapse;font-size:13px;white-space:nowrap;
font-variant-numeric:tabular-nums}
td,th{border-bottom:1px solid var(--line);padding:.25rem .6rem;text-align:right;vertical-align:top}
th{white-space:normal;vertical-align:bottom}td.text,th.text{text-align:left}td.long{white-space:normal;min-width:20rem}
td:first-child,th:first-child{text-align:left;position:sticky;left:0;background:var(--bg)}
.bars{display:grid;grid-template-columns:fit-content(22rem) 1fr max-content;gap:.3rem .7rem;
align-items:center;font-size:13px}.bar{display:contents}.name{text-align:right}
.track{position:relative;height:1rem}.fill{position:absolute;top:0;left:0;height:100%}
.whisker{position:absolute;top:25%;height:50%;border:solid var(--fg);border-width:0 1px;
box-sizing:border-box;background:linear-gradient(var(--fg),var(--fg)) center/100% 1px no-repeat}
.plot{display:block;width:100%;max-width:800px;font-size:12px}
svg text{fill:var(--fg)}.end{text-anchor:end}.middle{text-anchor:middle}
.grid{stroke:var(--line);fill:none}
.legend{list-style:none;padding:0;margin:.4rem 0;font-size:13px;columns:22rem 2}
.key{width:36px;height:8px;margin-right:.6rem}
.c0{background:var(--c0)}.c1{background:var(--c1)}.c2{background:var(--c2)}
.c3{background:var(--c3)}.c4{background:var(--c4)}
.l0,.l1,.l2,.l3,.l4{fill:none;stroke-width:2}.l0{stroke:var(--c0)}.l1{stroke:var(--c1)}
.h0{fill:var(--h0)}.h1{fill:var(--h1)}.h2{fill:var(--h2)}.h3{fill:var(--h3)}
.h4{fill:var(--h4)}.h5{fill:var(--h5)}.h6{fill:var(--h6)}
.l2{stroke:var(--c2)}.l3{stroke:var(--c3)}.l4{stroke:var(--c4)}
pre{font-size:12px;overflow-x:auto;border:1px solid var(--line);padding:.8rem}
@media(max-width:640px){.plot{font-size:16px}
.bars{grid-template-columns:1fr max-content;gap:0 .7rem}
.name{grid-column:1/-1;text-align:left;margin-top:.5rem}
td:first-child,th:first-child{white-space:normal;min-width:7rem;max-width:38vw}td.long{min-width:14rem}}
"""


def document(title: str, body: Iterable[str]) -> str:
    """The whole page; `body` are its parts as HTML."""
    return (
        '<!DOCTYPE html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<title>{escape(title)}</title><style>{STYLE}</style></head><body>"
        + "\n".join(body)
        + "</body></html>\n"
    )


def table(
    head: Sequence[str], rows: Sequence[Sequence[str]], kinds: Mapping[str, str] | None = None
) -> str:
    """A table that scrolls sideways by itself.

    `kinds` has the class of a column by its title; a column without a class holds figures.
    """
    classes = [f' class="{kinds[title]}"' if kinds and title in kinds else "" for title in head]
    top = _cells("th", head, classes)
    body = "".join(_cells("td", row, classes) for row in rows)
    return f'<div class="wide"><table>{top}{body}</table></div>'


def _cells(tag: str, texts: Sequence[str], classes: Sequence[str]) -> str:
    cells = [
        f"<{tag}{kind}>{escape(text)}</{tag}>" for text, kind in zip(texts, classes, strict=True)
    ]
    return f"<tr>{''.join(cells)}</tr>"
