"""Errors as a line that names the thing and the fix, and an exit code."""

from __future__ import annotations

import sys
from typing import IO, Any, Final

import click

EXIT_ERROR: Final = 1
EXIT_UNHEALTHY: Final = 3
"""No coordinator answers, or it can not reach its store or Kafka."""
EXIT_INTERRUPTED: Final = 130

_SHOW: Final = (
    " (this command shows --token-file or SHARECOORD_TOKEN, --cert-file with --key-file, or what"
    " --command-config says)"
)
_RULES: Final = " (the coordinator's security.rules.file says who may do what)"
_FIXES: Final = {
    "UNAUTHENTICATED": _SHOW,
    "_AUTHENTICATION": _SHOW,
    "AUTHORIZATION_FAILED": _RULES,
    "GROUP_AUTHORIZATION_FAILED": _RULES,
    "TOPIC_AUTHORIZATION_FAILED": _RULES,
}
"""Reason of the coordinator, or name of Kafka's code → what to do here."""

_DEBUG: Final = "sharecoord.debug"


class Failure(click.ClickException):
    """Ends the command with one line on stderr."""

    exit_code = EXIT_ERROR

    def show(self, file: IO[Any] | None = None) -> None:
        """Prints the line."""
        click.echo(f"sharecoord: error: {self.format_message()}", file=file, err=file is None)


class Unhealthy(Failure):
    """Ends the command because nobody answers, or the coordinator can not work."""

    exit_code = EXIT_UNHEALTHY


def set_debug(ctx: click.Context) -> None:
    """Makes errors show their traceback from now on."""
    ctx.find_root().meta[_DEBUG] = True


def is_debug(ctx: click.Context) -> bool:
    """Whether errors show their traceback."""
    return bool(ctx.find_root().meta.get(_DEBUG))


def failure_of(error: Exception) -> Failure:
    """The line and exit code for an error."""
    text = getattr(error, "message", None)
    if isinstance(text, str) and hasattr(error, "reason"):
        return _kind(error)(_one_line(text) + _FIXES.get(str(error.reason), ""))
    if error.args and hasattr(error.args[0], "str") and hasattr(error.args[0], "code"):
        return Failure(_one_line(str(error.args[0].str())) + _FIXES.get(error.args[0].name(), ""))
    if isinstance(error, OSError) and error.strerror:
        where = "" if error.filename is None else f"{error.filename}: "
        return Failure(f"{where}{error.strerror}")
    what = _one_line(f"{type(error).__name__}: {error}")
    return Failure(f"unexpected {what} (run again with --debug for the traceback)")


def _kind(error: Exception) -> type[Failure]:
    # An admin error comes from a module that is loaded already: none is loaded to find out.
    admin = sys.modules.get("sharecoord_sdk.admin")
    unavailable = getattr(admin, "CoordinatorUnavailableError", ())
    return Unhealthy if isinstance(error, unavailable) else Failure


def _one_line(text: str) -> str:
    return " ".join(text.split())
