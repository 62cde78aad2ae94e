"""Files of YAML that people write, read by nodes, which know their lines."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

import yaml

from sharecoord.config.setting import nearest
from sharecoord.errors import InvalidConfigError

_LOADER: Final = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class Nodes:
    """Reads the file of one setting; its errors name the setting, the line and the fix."""

    def __init__(self, setting: str) -> None:
        self._setting = setting

    def document(self, content: bytes) -> yaml.Node | None:
        """The root of a file; None = there is nothing in it but comments.

        Raises:
            InvalidConfigError: It is no YAML. The text is not quoted: a secret may stand in it.
        """
        try:
            found: yaml.Node | None = yaml.compose(content.decode("utf-8-sig"), Loader=_LOADER)
        except (UnicodeDecodeError, RecursionError, yaml.YAMLError) as error:
            mark = getattr(error, "problem_mark", None)
            place = f"{self._setting}:{mark.line + 1}" if mark is not None else self._setting
            problem = getattr(error, "problem", None) or type(error).__name__
            raise InvalidConfigError(f"{place}: the file is no YAML: {problem}") from None
        return found

    def entries(
        self, node: yaml.Node | None, known: Sequence[str], what: str
    ) -> Iterable[tuple[str, int, yaml.Node]]:
        """The entries of a mapping: key, line, value. Each key is known, and stands there once."""
        if not isinstance(node, yaml.MappingNode):
            raise self.bad(
                1 if node is None else line_of(node), f"{what} must be a mapping of {words(known)}"
            )
        seen: set[str] = set()
        for key, value in node.value:
            name, line = str(key.value), line_of(key)
            if name not in known:
                raise self.unknown(line, "key", name, known)
            if name in seen:
                raise self.bad(line, f"`{name}:` stands there twice")
            seen.add(name)
            yield name, line, value

    def items(self, node: yaml.Node | None, what: str) -> Sequence[yaml.Node]:
        """The items of a list; nothing at all is an empty list."""
        if node is None or (isinstance(node, yaml.ScalarNode) and not node.value):
            return ()
        if not isinstance(node, yaml.SequenceNode):
            raise self.bad(line_of(node), f"{what} must be a list")
        return list(node.value)

    def texts(self, node: yaml.Node, what: str) -> Iterable[tuple[str, int]]:
        """The texts of a list that is not empty, with lines; one text alone is a list of one."""
        nodes = [node] if isinstance(node, yaml.ScalarNode) else self.items(node, f"`{what}:`")
        if not nodes:
            raise self.bad(line_of(node), f"{what} is empty; name one at least")
        for each in nodes:
            if not isinstance(each, yaml.ScalarNode) or not each.value:
                raise self.bad(line_of(each), f"{what} must be a list of texts")
            yield each.value, line_of(each)

    def bad(self, line: int, problem: str) -> InvalidConfigError:
        """The error about a line."""
        return InvalidConfigError(f"{self._setting}:{line}: {problem}")

    def unknown(self, line: int, what: str, word: str, known: Iterable[str]) -> InvalidConfigError:
        """The error about a word that is not known, with the nearest known one."""
        return self.bad(line, unknown(what, word, known))


def unknown(what: str, word: str, known: Iterable[str]) -> str:
    """What is wrong with a word that is not known, with the nearest known one."""
    near = nearest(word, known)
    fix = f'did you mean "{near}"?' if near else f"known are {words(known)}"
    return f"unknown {what} {word!r}; {fix}"


def line_of(node: yaml.Node) -> int:
    """The line of a node, from 1."""
    return int(node.start_mark.line) + 1


def words(known: Iterable[str]) -> str:
    """Words in alphabetical order, for people."""
    return ", ".join(sorted(known))
