"""The command line as a whole: help, lazy imports, serve, config show, demo, bench, version."""

from __future__ import annotations

import json
import subprocess
import sys
import types
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from sharecoord import __version__
from sharecoord.cli.main import COMMANDS, cli
from sharecoord.errors import InvalidConfigError
from tests.unit.cli.support import lines, run

HEAVY = (
    *("grpc", "sqlalchemy", "confluent_kafka", "google.protobuf", "rich", "yaml"),
    *("pyarrow", "pyspark"),
)
PROGRAM = """
import sys
from sharecoord.cli.main import main
heavy = sys.argv.pop(1).split(",")
try:
    main()
except SystemExit as end:
    assert end.code in (0, None), end.code
print("loaded:", *[name for name in heavy if name in sys.modules], file=sys.stderr)
"""


@pytest.mark.parametrize(
    "arguments", [["--help"], *([name, "--help"] for name in COMMANDS), ["version"]]
)
def test_help_loads_nothing_heavy(arguments: list[str]) -> None:
    command = [sys.executable, "-c", PROGRAM, ",".join(HEAVY), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    assert done.stderr.splitlines()[-1] == "loaded:"
    assert done.stdout


def test_help_lists_every_command_with_its_own_first_line() -> None:
    listed = run("--help").stdout
    for name, lazy in COMMANDS.items():
        assert f"  {name}" in listed
        assert lazy.help in " ".join(listed.split())


def test_an_unknown_command_is_wrong_usage() -> None:
    result = run("group")
    assert result.exit_code == 2
    assert "No such command 'group'" in result.stderr


def test_version() -> None:
    assert run("version").stdout == f"sharecoord {__version__}\n"
    rows = json.loads(run("version", "--verbose", "-o", "json").stdout)
    assert {"name": "sharecoord", "version": __version__} in rows
    assert {row["name"] for row in rows} >= {"python", "grpcio", "protobuf"}


# -- config show ----------------------------------------------------------------------------------


def test_config_show_says_where_a_value_comes_from(tmp_path: Path) -> None:
    file = tmp_path / "c.yaml"
    file.write_text("store.url: postgresql://ann:secret@db/app\nkafka:\n  client.id: me\n")
    result = run("config", "show", "--config", str(file), env={"SHARECOORD_LOG__LEVEL": "debug"})
    assert [line.split() for line in result.stdout.splitlines()] == [
        line.split()
        for line in lines(
            f"""
            SETTING VALUE SOURCE PLACE
            store.url postgresql+psycopg://ann:***@db/app file {file}:1
            log.level debug environment SHARECOORD_LOG__LEVEL
            kafka.client.id me file {file}:3
            """
        )
    ]


def test_config_show_without_settings() -> None:
    result = run("config", "show")
    assert (result.exit_code, result.stdout) == (0, "")
    assert "`--effective` shows them all" in result.stderr


def test_config_show_effective() -> None:
    rows = json.loads(run("config", "show", "--effective", "-o", "json").stdout)
    by_name = {row["setting"]: row for row in rows}
    assert by_name["listen.address"]["value"] == "localhost:7070"
    assert by_name["group.share.record.lock.duration.ms"]["source"] == "default"


def test_a_bad_file_is_one_line(tmp_path: Path) -> None:
    file = tmp_path / "c.yaml"
    file.write_text("listen.adress: localhost:1\n")
    result = run("config", "show", "--config", str(file))
    assert (result.exit_code, result.stdout) == (1, "")
    (line,) = result.stderr.splitlines()
    assert "listen.address" in line
    assert run("config", "show", "--config", str(tmp_path / "none.yaml")).exit_code == 2


# -- what others run ------------------------------------------------------------------------------


class Recorder:
    """Stands for a function that another module provides."""

    def __init__(self, answer: int | Exception = 0) -> None:
        self.answer = answer
        self.args: tuple[Any, ...] = ()
        self.kwargs: dict[str, Any] = {}

    def __call__(self, *args: Any, **kwargs: Any) -> int:
        self.args, self.kwargs = args, kwargs
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


def install(monkeypatch: pytest.MonkeyPatch, module: str, name: str, function: Recorder) -> None:
    fake = types.ModuleType(module)
    setattr(fake, name, function)
    monkeypatch.setitem(sys.modules, module, fake)


def test_serve_turns_flags_into_settings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    serve = Recorder()
    install(monkeypatch, "sharecoord.app", "serve", serve)
    result = run(
        *("serve", "--kafka", "k1:9092,k2:9092", "--store", "memory:", "--listen", "0.0.0.0:0"),
        *("--insecure", "--events", "kafka:events", "--log-level", "debug"),
        *("--ready-file", str(tmp_path / "ready"), "--set", "commit.linger.ms=7"),
        *("--set", "group.share.auto.offset.reset=earliest"),
    )
    assert result.exit_code == 0, result.stderr
    (config,) = serve.args
    assert config.kafka["bootstrap.servers"] == "k1:9092,k2:9092"
    assert str(config.store.url) == "memory:"
    assert str(config.listen.address) == "0.0.0.0:0"
    assert config.listen.insecure is True
    assert str(config.events.sink) == "kafka:events"
    assert config.commit.linger_ms == 7
    assert config.group_defaults == {"share.auto.offset.reset": "earliest"}
    assert serve.kwargs == {"ready_file": tmp_path / "ready"}


def test_serve_has_defaults_and_an_exit_code(monkeypatch: pytest.MonkeyPatch) -> None:
    serve = Recorder(4)
    install(monkeypatch, "sharecoord.app", "serve", serve)
    result = run("serve", env={"SHARECOORD_LISTEN__READY_FILE": "/tmp/ready"})
    assert result.exit_code == 4
    assert serve.args[0].kafka["bootstrap.servers"] == "localhost:9092"
    assert serve.kwargs == {"ready_file": Path("/tmp/ready")}


def test_serve_reports_what_keeps_it_from_serving(monkeypatch: pytest.MonkeyPatch) -> None:
    error = InvalidConfigError("listen.address: can not listen on localhost:1")
    install(monkeypatch, "sharecoord.app", "serve", Recorder(error))
    result = run("serve")
    assert result.exit_code == 1
    assert result.stderr == "sharecoord: error: listen.address: can not listen on localhost:1\n"
    assert "it must be NAME=VALUE" in run("serve", "--set", "x").stderr
    assert run("serve", "--listen", "nowhere").exit_code == 1


def test_demo_hands_over_what_was_given(monkeypatch: pytest.MonkeyPatch) -> None:
    demo = Recorder(1)
    install(monkeypatch, "sharecoord.demo.main", "run", demo)
    assert run("demo").exit_code == 1
    assert demo.kwargs == {"real": False, "plain": False}
    run("demo", "--kafka", "k:1", "--records", "7", "--workers", "2", "--plain", "--seed", "3")
    assert demo.kwargs == {
        "kafka": "k:1",
        "real": False,
        "records": 7,
        "workers": 2,
        "plain": True,
        "seed": 3,
    }
    assert run("demo", "--kafka", "k:1", "--kafka-real").exit_code == 2


def test_bench_hands_over_what_was_given(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Recorder()
    install(monkeypatch, "sharecoord.bench.standard.run", "run", bench)
    assert run("bench").exit_code == 0
    assert bench.kwargs == {"quick": False, "strict": False}
    run("bench", "--size", "100", "--size", "1000", "--output", "out", "--strict")
    assert bench.kwargs["sizes"] == (100, 1000)
    assert bench.kwargs["output"] == Path("out")
    assert bench.kwargs["strict"] is True


@pytest.mark.parametrize("flag", ["--out", "--output"])
def test_the_folder_of_a_result_is_out_and_output(
    flag: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    capacity = Recorder()
    install(monkeypatch, "sharecoord.bench.capacity.run", "run", capacity)
    assert run("bench", "capacity", flag, "out").exit_code == 0
    assert capacity.kwargs["output"] == Path("out")
    folder = str(tmp_path)
    found = run("analyze", "generate", flag, folder, "--events", "x")
    assert "No such option" not in found.output
    assert "--events" in found.stderr


@pytest.mark.parametrize("command", [("bench",), ("bench", "run"), ("analyze", "generate")])
def test_help_has_one_name_for_the_folder_of_a_result(command: tuple[str, ...]) -> None:
    told = run(*command, "--help").stdout
    assert "--out DIR" in told
    assert "--output" not in told


def test_no_color_is_plain(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.delenv("NO_COLOR", raising=False)
    arguments = ["version", "--verbose"]
    assert "\x1b[1m" in CliRunner().invoke(cli, arguments, color=True).stdout
    plain = CliRunner().invoke(cli, [*arguments, "--no-color"], color=True).stdout
    assert "\x1b" not in plain
    assert plain.startswith("NAME")
