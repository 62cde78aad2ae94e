"""Drivers and coordinators as processes, when they fail; the machine they run on."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import yaml

from sharecoord.bench import runner
from sharecoord.bench.drivers.options import DriverOptions
from sharecoord.bench.errors import BenchError
from sharecoord.bench.machine import describe_machine, file_system
from sharecoord.bench.runner import run_driver_process
from sharecoord.config.process import load
from sharecoord.devenv import coordinator
from sharecoord.devenv.coordinator import CoordinatorProcess
from sharecoord.devenv.errors import DevenvError

OPTIONS = DriverOptions("127.0.0.1:1", "g", "t", 50_000, False, {}, 0.0)

MOUNTS = [
    "/dev/a / ext4 rw 0 0",
    "tmpfs /srv tmpfs rw 0 0",
    "/dev/b /srv/with\\040blank xfs rw 0 0",
    "overlay /srv/twice overlay rw 0 0",
    "/dev/c /srv/twice btrfs rw 0 0",
]


def test_a_driver_that_fails_is_quoted() -> None:
    with pytest.raises(BenchError, match=r"plain failed with exit code 1:\n") as caught:
        run_driver_process("plain", OPTIONS)
    assert caught.value.message.endswith("0 of 50000 records arrived within 0 s")


def test_a_driver_that_hangs_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "DRIVER_GRACE_S", 0.001)
    with pytest.raises(BenchError, match="the driver plain did not end within"):
        run_driver_process("plain", OPTIONS)


def test_a_driver_that_says_something_else_is_refused() -> None:
    # A module without a main part: it ends in order and prints nothing.
    with pytest.raises(BenchError, match="the driver share_loop printed ''"):
        run_driver_process("share_loop", OPTIONS)


def test_a_coordinator_that_does_not_start_shows_its_log(tmp_path: Path) -> None:
    with pytest.raises(DevenvError, match="ended with exit code 1") as caught:
        CoordinatorProcess("", tmp_path).start()
    assert "kafka.bootstrap.servers" in caught.value.message


def test_the_settings_of_the_coordinator_are_real_ones(tmp_path: Path) -> None:
    CoordinatorProcess("broker:9092", tmp_path, settings=runner.QUIET)
    config = load(tmp_path / "coordinator.yaml", {}, {})
    assert config.kafka["bootstrap.servers"] == "broker:9092"
    assert config.group_defaults == {"share.auto.offset.reset": "earliest"}
    assert config.store.url.url == f"sqlite:///{tmp_path}/store.db"
    # Nothing else differs from the defaults: those are what is measured.
    written = yaml.safe_load((tmp_path / "coordinator.yaml").read_text(encoding="utf-8"))
    assert set(written) == {
        "kafka.bootstrap.servers",
        "store.url",
        "listen.address",
        "management.port",
        "log.level",
        "group.share.auto.offset.reset",
    }


def test_settings_in_the_environment_do_not_reach_the_coordinator(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SHARECOORD_MEMORY__LIMIT", "1")
    passed_on = coordinator.clean_environment()
    assert "SHARECOORD_MEMORY__LIMIT" not in passed_on
    assert passed_on["PATH"] == os.environ["PATH"]


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/", "ext4"),
        ("/srv/x", "tmpfs"),
        ("/srv/with blank/x", "xfs"),
        ("/srv/twice", "btrfs"),
        ("/srvx", "ext4"),
    ],
)
def test_the_deepest_and_last_mount_holds_a_path(path: str, kind: str) -> None:
    assert file_system(Path(path), MOUNTS) == kind


def test_without_mounts_the_file_system_is_unknown(tmp_path: Path) -> None:
    assert file_system(tmp_path, []) == "unknown"


def test_this_machine_is_described(tmp_path: Path) -> None:
    machine = describe_machine(kafka="4.3.1", store_directory=tmp_path)
    assert machine.kafka == "4.3.1"
    assert machine.cores >= 1
    assert machine.cpu_model
    assert machine.packages["grpcio"]
    assert len(machine.load_average) == 3
