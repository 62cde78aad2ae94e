"""Writes docs/settings.md from the settings tables.

`python -m sharecoord.config.docs` writes the file, `--check` says whether it is current.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final

from sharecoord.config.group import GROUP_SETTINGS
from sharecoord.config.kafka_keys import OWNED_KEYS
from sharecoord.config.process import SECTIONS
from sharecoord.config.setting import Kind, Setting, settings_of
from sharecoord.config.sources import FREE_PREFIXES, FREE_VARIABLES, variable_of

DEFAULT_OUTPUT: Final = Path(__file__).resolve().parents[2] / "docs" / "settings.md"

_INTRODUCTION: Final = """\
# Settings

This file is generated from the settings tables by `python -m sharecoord.config.docs`; change the
tables, not this file. `sharecoord config show` prints what is in force, and where each value comes
from.

## Where settings come from

From the strongest to the weakest:

1. flags of `sharecoord serve`,
2. environment variables `SHARECOORD_<SECTION>__<KEY>`,
3. for `kafka.*`: the file of `--kafka-config` (librdkafka's format or a Java client.properties),
4. the YAML file of `--config`,
5. the defaults below.

In YAML, sections may be nested or written with dots: `listen: {address: localhost:7070}` and
`listen.address: localhost:7070` are the same. A value with a `: `, `[`, `{` or `#` in it needs
quotes (`"memory:"`, `"[::1]:7070"`). An unknown key, an unknown `SHARECOORD_` variable included, is
an error that names the nearest known one.

Any value may be, or have in it, a **reference**: `${file:PATH}` stands for the content of a file
(UTF-8, at most 1 MiB) without its last line end, `${env:NAME}` for an environment variable. In a
URL, a reference between `://` and `@` is percent-encoded, so that a password may have any
characters:

    store.url: postgresql://sharecoord:${file:/run/secrets/database}@db:5432/sharecoord
    kafka.sasl.password: ${env:KAFKA_PASSWORD}

References are replaced once, at the start: a secret that is rotated is taken up by the next start.
`config show` prints them as they were written. A secret that is written into a flag can be read by
every user of the machine (`ps`), and `serve` warns of it.

* **Durations** are written `500ms`, `30s`, `5m`, `1h30m`, `7d`, or as an integer of milliseconds.
* **Sizes** are written `512MiB`, `64kB`, `1GiB`, or as an integer of bytes.
* **Booleans** are `true` and `false`.
"""

_GROUP_INTRODUCTION: Final = """\
## Settings of a group

They keep Kafka's names and, where Kafka has the setting, its default; bounds are wider. They are
set for one group, also before the group exists, and act without a restart:

    sharecoord configs --entity-type groups --entity-name GROUP --alter --add-config KEY=VALUE

or for all groups of a coordinator under `group:` in the YAML file and as `SHARECOORD_GROUP__<KEY>`,
where `_` stands for `.`. A group's own value wins over the value for all groups.
"""

_KAFKA_INTRODUCTION: Final = """\
## Kafka client (`kafka.*`)

Every key of librdkafka is passed through unchanged: `kafka.bootstrap.servers` (default
`localhost:9092`), `kafka.security.protocol`, `kafka.sasl.*`, `kafka.ssl.*`, … As a variable `_`
stands for `.`: `SHARECOORD_KAFKA__SASL_USERNAME`. These keys cannot be set:
"""

_FREE_INTRODUCTION: Final = """\
## Other variables

These `SHARECOORD_` variables are no settings of the process, and it accepts them:
"""


def render() -> str:
    """The whole document."""
    parts = [_INTRODUCTION, "## Settings of the process\n\nThey are read once, at the start.\n"]
    for section, section_class in SECTIONS.items():
        meaning = (section_class.__doc__ or "").strip()
        parts.append(f"### {section}\n\n{meaning}\n")
        parts.append(_table(settings_of(section_class).values(), with_variable=True))
    parts += [_GROUP_INTRODUCTION, _table(GROUP_SETTINGS.values(), with_variable=False)]
    parts += [_KAFKA_INTRODUCTION, table("Key | Reason", _coded(sorted(OWNED_KEYS.items())))]
    free = [*FREE_VARIABLES.items(), *((f"{p}…", meaning) for p, meaning in FREE_PREFIXES.items())]
    free.append(("SHARECOORD_…_SERVICE_HOST, …_PORT", "set by Kubernetes for services"))
    parts += [_FREE_INTRODUCTION, table("Variable | Meaning", _coded(free))]
    return "\n".join(parts)


def _table(settings: Iterable[Setting], *, with_variable: bool) -> str:
    rows = []
    for setting in settings:
        meaning = setting.meaning
        if with_variable:
            meaning += f" `{variable_of(setting.name)}`"
        rows.append((f"`{setting.name}`", _default(setting), _allowed(setting), meaning))
    return table("Setting | Default | Allowed | Meaning", rows)


def _default(setting: Setting) -> str:
    text = setting.default_text()
    if setting.kind is Kind.DURATION and text != f"{setting.default}ms":
        return f"`{text}` ({setting.default} ms)"
    return f"`{text}`"


def _allowed(setting: Setting) -> str:
    if setting.choices:
        return ", ".join(f"`{choice}`" for choice in setting.choices)
    if setting.kind is Kind.BOOL:
        return "`true`, `false`"
    bounds = setting.bounds_text()
    kind = setting.kind.value if setting.kind is not Kind.CUSTOM else "see meaning"
    return f"{kind}, {bounds}" if bounds else kind


def _coded(pairs: Iterable[tuple[str, str]]) -> Iterator[tuple[str, str]]:
    return ((f"`{name}`", text) for name, text in pairs)


def table(header: str, rows: Iterable[Sequence[str]]) -> str:
    """A table of Markdown; `header` has its titles, with ` | ` between them."""
    lines = [f"| {header} |", "|" + " --- |" * len(header.split(" | "))]
    lines += ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows]
    return "\n".join(lines) + "\n"


def between(text: str, begin: str, end: str, tables: str) -> str:
    """A page with these tables between its marks, in place of what stands there.

    Raises:
        ValueError: The marks are not in it.
    """
    head, found, rest = text.partition(begin)
    _, closed, tail = rest.partition(end)
    if not found or not closed:
        raise ValueError(f"the marks {begin} and {end} are missing")
    return f"{head}{begin}\n\n{tables}\n{end}{tail}"


def write_or_check(
    module: str, output: Path, render_from: Callable[[str], str], arguments: Sequence[str] | None
) -> int:
    """Writes a generated page, or checks it: the command line of `python -m MODULE`.

    Args:
        module: Name of the module that makes the page.
        output: The page, unless --output names another one.
        render_from: Makes the whole page from its present text ("" when there is none).
        arguments: Of the command line; None: those of the process.

    Returns:
        Exit code: 0, or 1 when --check finds the page out of date.
    """
    parser = argparse.ArgumentParser(prog=f"python -m {module}")
    parser.add_argument("--check", action="store_true", help="only say whether it is current")
    parser.add_argument("--output", type=Path, default=output, help="the file")
    options = parser.parse_args(arguments)
    page: Path = options.output
    current = page.read_text(encoding="utf-8") if page.exists() else ""
    wanted = render_from(current)
    if not options.check:
        page.write_text(wanted, encoding="utf-8")
    elif current != wanted:
        sys.stderr.write(f"{page} is out of date: run python -m {module}\n")
        return 1
    return 0


def main(arguments: Sequence[str] | None = None) -> int:
    """Writes or checks docs/settings.md; see `write_or_check`."""
    return write_or_check("sharecoord.config.docs", DEFAULT_OUTPUT, lambda _: render(), arguments)


if __name__ == "__main__":
    sys.exit(main())
