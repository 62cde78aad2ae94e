"""Coordinators as processes, when they fail; the machine they run on."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import yaml

from sharecoord.bench.coordinator import MeasuredCoordinator
from sharecoord.bench.machine import describe_machine, file_system
from sharecoord.config.process import load
from sharecoord.devenv import coordinator
from sharecoord.devenv.coordinator import CoordinatorProcess
from sharecoord.devenv.errors import DevenvError

MOUNTS = [
    "/dev/a / ext4 rw 0 0",
    "tmpfs /srv tmpfs rw 0 0",
    "/dev/b /srv/with\\040blank xfs rw 0 0",
    "overlay /srv/twice overlay rw 0 0",
    "/dev/c /srv/twice btrfs rw 0 0",
]


def test_a_coordinator_that_does_not_start_shows_its_log(tmp_path: Path) -> None:
    with pytest.raises(DevenvError, match="ended with exit code 1") as caught:
        CoordinatorProcess("", tmp_path).start()
    assert "kafka.bootstrap.servers" in caught.value.message


def test_the_settings_of_the_coordinator_are_real_ones(tmp_path: Path) -> None:
    MeasuredCoordinator("broker:9092", tmp_path)
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
        "management.host",
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
