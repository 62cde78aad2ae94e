"""Kafka's own programs, one after the other in one JVM."""

from __future__ import annotations

import base64
import re
import subprocess
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Self

from sharecoord.devenv.maven import find_java, kafka_libs

_RUNNER = Path(__file__).with_name("KafkaTools.java")
_PACKAGE = "org.apache.kafka.tools"
_PROGRAMS = {
    "groups": f"{_PACKAGE}.consumer.group.ShareGroupCommand",
    "configs": f"{_PACKAGE}.ConfigCommand",
    "topics": f"{_PACKAGE}.TopicCommand",
    "offsets": f"{_PACKAGE}.GetOffsetShell",
    "all-groups": f"{_PACKAGE}.GroupsCommand",
}
_OLD_CONFIGS = "kafka.admin.ConfigCommand"
"""Where it was before 4.4."""

_STACK = re.compile(r"\s+at |Caused by: |\s+\.\.\. ")


class Shown(NamedTuple):
    """What a program has printed, without stack traces."""

    code: int
    lines: list[str]

    @property
    def text(self) -> str:
        """All of it."""
        return "\n".join(self.lines)


class KafkaTools:
    """A JVM that runs Kafka's programs, of one release."""

    def __init__(self, version: str) -> None:
        """Starts it."""
        self.version = version
        options = ["-XX:TieredStopAtLevel=1", "-Xmx256m", "-cp", f"{kafka_libs(version)}/*"]
        self._jvm = subprocess.Popen(
            [str(find_java()), *options, str(_RUNNER)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )

    def run(self, program: str, address: str, *arguments: str) -> Shown:
        """Runs `groups`, `configs` and so on against a broker."""
        name = _PROGRAMS[program]
        if program == "configs" and self.version < "4.4":
            name = _OLD_CONFIGS
        assert self._jvm.stdin is not None
        assert self._jvm.stdout is not None
        self._jvm.stdin.write("\t".join([name, "--bootstrap-server", address, *arguments]) + "\n")
        self._jvm.stdin.flush()
        code, shown = self._jvm.stdout.readline().split("\t")
        lines = base64.b64decode(shown).decode().splitlines()
        return Shown(int(code), [line.rstrip() for line in lines if not _STACK.match(line)])

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._jvm.kill()
        self._jvm.communicate()
