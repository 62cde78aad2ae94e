"""What the pages name is there: commands and their options, settings, metrics, paths, files.

What a page tells to type is run by `tests/acceptance/test_shell_blocks.py`, or says why not.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
import yaml
from prometheus_client.core import Metric
from sharecoord_sdk._core.config_table import SETTINGS as SDK_SETTINGS

from sharecoord.cli.main import cli
from sharecoord.config.group import GROUP_SETTINGS
from sharecoord.config.process import PROCESS_SETTINGS
from sharecoord.management.server import BoardCollector, make_app
from sharecoord.runtime.status.status import StatusBoard
from tests.pages import PROGRAMS, ROOT, SHELL, Block, all_blocks, code_of, name_of, pages, words_of
from tests.unit.management.test_server import SNAPSHOT

PAGES = pages()
BLOCKS = all_blocks()
NOT_RUN = [block for block in BLOCKS if block.reason]
ELSEWHERE = re.compile(r"(tests/\S+) (runs it|runs the jobs?|is what it runs)")
of_each_page = pytest.mark.parametrize("page", PAGES, ids=name_of)


# -- blocks ---------------------------------------------------------------------------------------


def test_commands_stand_in_blocks_that_say_so() -> None:
    for block in BLOCKS:
        first = block.text.split(maxsplit=1)[0] if block.text.strip() else ""
        if block.language not in SHELL:
            assert first not in PROGRAMS | {"sharecoord"}, f"{block}: write ```sh"


@pytest.mark.parametrize("block", NOT_RUN, ids=str)
def test_a_block_that_is_not_run_has_a_reason_that_holds(block: Block) -> None:
    elsewhere = ELSEWHERE.fullmatch(block.reason)
    if elsewhere is not None:
        place = ROOT / elsewhere[1]
        files = [place] if place.is_file() else sorted(place.glob("test_*.py"))
        text = "".join(file.read_text(encoding="utf-8") for file in files)
        for words in block.commands:
            named = [word for word in words[1:3] if re.fullmatch("[a-z]+", word)]
            assert not named or words[0] == "pip" or any(word in text for word in named), (
                f"{elsewhere[1]}: {words}"
            )
        assert text
    elif block.reason == "it needs a Kubernetes cluster":
        assert {tuple(words[:2]) for words in block.commands} <= {
            ("helm", "upgrade"),
            ("helm", "test"),
        }
    else:
        assert block.reason == "it measures for minutes"
        assert {words[1] for words in block.commands} == {"bench"}


def test_each_mark_is_at_a_block() -> None:
    marks = sum(page.read_text(encoding="utf-8").count("<!-- not run:") for page in PAGES)
    assert marks == len(NOT_RUN)


# -- commands -------------------------------------------------------------------------------------


def unknown_in(words: list[str]) -> str:
    """The word of a command line of `sharecoord` that the program does not know; "" = it knows."""
    command: click.Command = cli
    takes_value = {"--help": False, "-h": False}
    rest = iter(words[1:])
    for word in rest:
        for each in command.params:
            flags = [*each.opts, *each.secondary_opts]
            is_flag = isinstance(each, click.Option) and (each.is_flag or each.count)
            takes_value |= dict.fromkeys(flags, not is_flag)
        # In synopses options stand in brackets, and alternatives beside each other.
        name, is_given, _ = word.strip("[]…").partition("=")
        if name.startswith("-"):
            flags = name.split("/")
            if not takes_value.keys() >= set(flags):
                return name
            if takes_value[flags[-1]] and not is_given:
                next(rest, None)
        elif isinstance(command, click.Group):
            found = command.get_command(click.Context(command), name)
            if found is None:
                return name if re.fullmatch("[a-z-]+", name) else ""
            command = found
    return ""


def command_lines(page: Path) -> Iterator[list[str]]:
    """Of `sharecoord`, in blocks and in the prose."""
    for block in BLOCKS:
        if block.page == name_of(page) and block.is_shell:
            for words in block.commands:
                if "sharecoord" in words[:1]:
                    yield words
    for span in code_of(page):
        if span.startswith("sharecoord ") and "=" not in span.split()[1]:
            yield words_of(span.replace("'", ""))


@of_each_page
def test_commands_and_their_options_exist(page: Path) -> None:
    for words in command_lines(page):
        assert not unknown_in(words), " ".join(words)


def commands_below(command: click.Command) -> Iterator[click.Command]:
    """It, and all that it has."""
    yield command
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            found = command.get_command(context, name)
            assert found is not None, name
            yield from commands_below(found)


def test_what_help_names_exists() -> None:
    notes = (ROOT / "helm/sharecoord/templates/NOTES.txt").read_text(encoding="utf-8")
    texts = [re.sub(r"\{\{.*?\}\}", "X", notes)]
    for command in commands_below(cli):
        options = [each.help or "" for each in command.params if isinstance(each, click.Option)]
        texts += [command.help or "", *options]
    for text in texts:
        for name in re.findall(r"\b(?:docs|tools|tests)/[\w./-]+\w", text):
            assert (ROOT / name).exists(), name
        whole = text.replace("\\\n", " ")
        for line in re.findall(r"(?:^\s*|`)(sharecoord [a-z][^`\n]*)", whole, re.MULTILINE):
            is_sentence = line.split()[1] not in cli.list_commands(click.Context(cli))
            assert is_sentence or not unknown_in(words_of(line.replace("'", ""))), line


def test_an_unknown_command_is_found() -> None:
    assert unknown_in(["sharecoord", "groups", "--descripe"]) == "--descripe"
    assert unknown_in(["sharecoord", "group", "--list"]) == "group"
    assert unknown_in(["sharecoord", "keys", "list", "--group", "g", "--rate", "5"]) == "--rate"


def test_make_targets_exist() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"^([a-z-]+):", makefile, re.MULTILINE))
    typed = [words for block in BLOCKS if block.is_shell for words in block.commands]
    typed += [words_of(s) for page in PAGES for s in code_of(page) if re.match("make [a-z]", s)]
    for words in typed:
        if words[0] == "make":
            named = {word for word in words[1:] if "=" not in word}
            assert named <= targets, " ".join(words)


def test_extras_exist() -> None:
    extras: dict[str, set[str]] = {}
    for path in ("pyproject.toml", "sdk/pyproject.toml", "sdk/batches/pyproject.toml"):
        project = tomllib.loads((ROOT / path).read_text(encoding="utf-8"))["project"]
        extras[project["name"]] = set(project["optional-dependencies"])
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        for name, named in re.findall(r"(sharecoord(?:-sdk|-batches)?)\[([a-z,]+)\]", text):
            assert set(named.split(",")) <= extras[name], f"{name_of(page)}: {name}[{named}]"


# -- settings, metrics, paths ---------------------------------------------------------------------


OWN_SETTINGS = {*GROUP_SETTINGS, *PROCESS_SETTINGS}
SECTIONS = {name.partition(".")[0] for name in OWN_SETTINGS} - {"kafka", "store"}
"""Kafka's settings are Kafka's; `store.db` is a file."""

OF_BROKERS = "share.coordinator."


def names_in(values: object, prefix: str = "") -> Iterator[str]:
    """The full names of a chart's values."""
    if isinstance(values, dict):
        for name, value in values.items():
            yield from names_in(value, f"{prefix}.{name}" if prefix else name)
    else:
        yield prefix


CHART = yaml.safe_load((ROOT / "helm/sharecoord/values.yaml").read_text(encoding="utf-8"))
CHART_VALUES = set(names_in(CHART))


@of_each_page
def test_settings_exist(page: Path) -> None:
    known = OWN_SETTINGS | set(SDK_SETTINGS) | CHART_VALUES
    for span in code_of(page):
        for name in re.findall(r"(?<![\w./:-])([a-z]+(?:\.[a-z]+)+)(?![\w./(-])", span):
            if name.partition(".")[0] in SECTIONS and not name.startswith(OF_BROKERS):
                is_part = any(each.startswith(name + ".") for each in known)
                assert name in known or is_part, name


def served_metrics() -> set[str]:
    """As Prometheus shows them."""
    board = StatusBoard()
    board.latest = SNAPSHOT
    families: list[Metric] = list(BoardCollector(board).collect())
    return {each.name + ("_total" if each.type == "counter" else "") for each in families}


@of_each_page
def test_metrics_exist(page: Path) -> None:
    served = served_metrics()
    for span in code_of(page):
        for name in re.findall(r"\bsharecoord_(?!sdk\b|batches\b)[a-z_]+", span):
            assert name in served, name


def test_each_metric_is_explained() -> None:
    named = " ".join(code_of(ROOT / "docs/operations.md"))
    for name in served_metrics():
        assert re.search(rf"\b{name}\b", named), name


@of_each_page
def test_addresses_of_the_management_server_exist(page: Path) -> None:
    served = {getattr(route, "path", "") for route in make_app(StatusBoard()).routes}
    text = page.read_text(encoding="utf-8")
    assert set(re.findall(r"(?<![\w/])(/(?:healthz|metrics|live|ready)[/a-z]*)", text)) <= served
    assert "console page" not in text


@of_each_page
def test_files_and_links_exist(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    for link in re.findall(r"\]\((?!https?:)([^)#\s]+)", text):
        assert (page.parent / link).exists(), link
    for span in code_of(page):
        for name in re.findall(r"(?:docs|helm|proto|sdk|sharecoord|tests|tools)/[\w./*-]*", span):
            place = name.rstrip("./")
            assert any(ROOT.glob(place)) or is_written(place), name


def is_written(place: str) -> bool:
    """Whether it is no file of the repository, but an example, or one that the product writes."""
    return place.endswith("/test_x.py") or place.startswith(
        ("sharecoord/events", "sharecoord/sharecoord.", "sharecoord/store.db")
    )


@of_each_page
def test_tests_that_are_named_exist(page: Path) -> None:
    for path, name in re.findall(r"(tests/[\w/]+\.py)::(\w+)", page.read_text(encoding="utf-8")):
        assert f"def {name}(" in (ROOT / path).read_text(encoding="utf-8"), f"{path}::{name}"


# -- pages beside each other ----------------------------------------------------------------------

NAMED = re.compile(
    r"""(?:subscribe\(\[|produce\(\s*|handler\(\s*|NewTopic\(|alter_group_configs\(\s*|"group\.id":\s)"""
    r'"([\w-]+)"'
)


def test_programs_of_different_pages_share_no_topic_and_no_group() -> None:
    owner: dict[str, str] = {}
    for block in BLOCKS:
        if block.language == "python" and block.page.startswith(("docs/", "README")):
            for name in NAMED.findall(block.text):
                assert owner.setdefault(name, block.page) == block.page, name
    assert {"orders", "baskets", "sales", "ledger"} <= owner.keys()
