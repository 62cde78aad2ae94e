"""The command line with clients by hand."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from click.testing import CliRunner, Result

from sharecoord.cli.main import cli
from sharecoord.cli.options import Services

Answer = Any


class FakeAdmin:
    """Answers each method with what a test gave it, and keeps the calls."""

    def __init__(self, **answers: Answer) -> None:
        self.answers = answers
        self.calls: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = []
        self.settings: dict[str, Any] = {}
        self.closed = False

    def __enter__(self) -> FakeAdmin:
        return self

    def __exit__(self, *_: object) -> None:
        self.closed = True

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name not in self.answers:
            raise AttributeError(f"this fake was given no answer for {name}")

        def call(*args: Any, **kwargs: Any) -> Any:
            self.calls.append((name, args, kwargs))
            answer = self.answers[name]
            if isinstance(answer, Exception):
                raise answer
            return answer

        return call


def run(
    *arguments: str,
    admin: FakeAdmin | None = None,
    consumer: Any = None,
    env: dict[str, str | None] | None = None,
) -> Result:
    """Runs `sharecoord` with these arguments."""
    made = admin or FakeAdmin()

    def make_admin(settings: dict[str, Any]) -> Any:
        made.settings = settings
        return made

    def make_consumer(settings: dict[str, Any]) -> Any:
        consumer.settings = settings
        return consumer

    services = Services(make_admin, make_consumer)
    variables: dict[str, str | None] = {"SHARECOORD_BOOTSTRAP_SERVER": None, **(env or {})}
    return CliRunner(env=variables).invoke(
        cli, list(arguments), obj=services, prog_name="sharecoord"
    )


def lines(text: str) -> Sequence[str]:
    """The lines of a golden text, without its first line break and indentation."""
    stripped = text.strip("\n").splitlines()
    indent = min(len(line) - len(line.lstrip()) for line in stripped if line.strip())
    return [line[indent:].rstrip() for line in stripped if line.strip()]


def words(text: str) -> list[str]:
    """What stands between spaces: a line without the widths of its columns."""
    return text.split()
