"""Raw settings from a YAML file and from the environment, each with its place, not yet checked."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import Final

import yaml

from sharecoord.config.kafka_keys import kafka_key_of_variable
from sharecoord.config.references import has_reference, resolve
from sharecoord.config.setting import unknown_name
from sharecoord.errors import InvalidConfigError

ENVIRONMENT_PREFIX: Final = "SHARECOORD_"
FREE_VARIABLES: Final = {
    "SHARECOORD_BOOTSTRAP_SERVER": "address of the coordinator for the admin commands",
    "SHARECOORD_CA_FILE": "--ca-file of the admin commands",
    "SHARECOORD_CERT_FILE": "--cert-file of the admin commands",
    "SHARECOORD_COMMAND_CONFIG": "--command-config of the admin commands",
    "SHARECOORD_KEY_FILE": "--key-file of the admin commands",
    "SHARECOORD_KEY_PASSWORD": "password of the private key of the admin commands",
    "SHARECOORD_TOKEN": "token that the admin commands show",
    "SHARECOORD_TOKEN_FILE": "--token-file of the admin commands",
    "SHARECOORD_CACHE": "directory for downloaded brokers of tests, benchmarks and the demo",
}
"""Variables that other parts of the product read, with their meaning."""
FREE_PREFIXES: Final = {"SHARECOORD_TEST_": "addresses of brokers and databases for the tests"}
"""Prefixes of variables that other parts of the product read."""

# Kubernetes sets these in every pod of a namespace that has a service named sharecoord or
# sharecoord-…; refusing them would break every pod there.
_SERVICE_LINK: Final = re.compile(
    r"SHARECOORD(_[A-Z0-9]+)*_(SERVICE_HOST|SERVICE_PORT(_[A-Z0-9_]+)?"
    r"|PORT_[0-9]+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)",
    re.ASCII,
)
_SERVICE_LINK_PORT: Final = re.compile(r"(tcp|udp|sctp)://", re.ASCII)
_MAX_DEPTH: Final = 12
_NAMED: Final = re.compile(r"(alias|anchor|handle|tag) .*", re.DOTALL)


class Source(StrEnum):
    """Where a value in force comes from; later ones win over earlier ones."""

    DEFAULT = "default"
    FILE = "file"
    KAFKA_FILE = "kafka-config"
    ENVIRONMENT = "environment"
    FLAG = "flag"


@dataclass(frozen=True, slots=True)
class Raw:
    """A value that somebody set."""

    value: object = field(repr=False)
    """Text, or a list of texts; from flags also int, float and bool."""
    source: Source
    place: str = ""
    """`file.yaml:3`, the variable's name, or empty."""
    written: str | None = field(default=None, repr=False)
    """The value before references in it were resolved; None = it had none."""

    @property
    def where(self) -> str:
        """The place as it stands before an error."""
        return f"--{self.place}" if self.source is Source.FLAG else self.place

    def resolved(self, name: str, environ: Mapping[str, str]) -> Raw:
        """The value of the setting `name` with what its references stand for.

        Raises:
            InvalidConfigError: As `references.resolve`.
        """
        texts = self.value if isinstance(self.value, list) else [self.value]
        if not any(isinstance(text, str) and has_reference(text) for text in texts):
            return self
        found = [resolve(str(text), environ, name=name, where=self.where) for text in texts]
        value = found if isinstance(self.value, list) else found[0]
        return replace(self, value=value, written=",".join(map(str, texts)))


def read_yaml(path: Path) -> dict[str, Raw]:
    """Reads a YAML file into dotted names.

    Sections may be nested or written with dots: `listen: {address: …}` and `listen.address: …` are
    the same. Only plain data is read, as by `yaml.safe_load`; unlike it, this refuses duplicate
    keys and knows the lines.

    Raises:
        InvalidConfigError: Unreadable, not YAML, a duplicate key, an empty value, or a structure
            that settings do not have; names file and line.
    """
    root = yaml_root(path, f'cannot read the configuration "{path}" of --config')
    found: dict[str, Raw] = {}
    if root is not None:
        _flatten(path, root, (), found)
    return found


def yaml_root(path: Path, unreadable: str) -> yaml.Node | None:
    """The root of a YAML file of plain data, whose nodes know their lines; None when it is empty.

    Raises:
        InvalidConfigError: Not YAML: names the line and the problem, but not the text, in which a
            password may stand. Or the file can not be read, which `unreadable` says.
    """
    try:
        return yaml.compose(path.read_text(encoding="utf-8-sig"), Loader=yaml.SafeLoader)
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise InvalidConfigError(f"{unreadable}: {reason}") from None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        place = f"{path}:{mark.line + 1}" if mark is not None else str(path)
        # A text that begins with "*", "&" or "!" is a name to YAML, and may be a password.
        problem = _NAMED.sub(r"\1", getattr(error, "problem", None) or "it cannot be read")
        raise InvalidConfigError(
            f'{place}: not valid YAML: {problem}. Put values with ": ", "[", "{{", "#", "*", "&" '
            'or "!" in quotes.'
        ) from None


def _flatten(path: Path, node: yaml.Node, prefix: tuple[str, ...], found: dict[str, Raw]) -> None:
    """Adds everything below the node to `found` under dotted names."""
    place = f"{path}:{node.start_mark.line + 1}"
    name = ".".join(prefix)
    if isinstance(node, yaml.MappingNode):
        if len(prefix) > _MAX_DEPTH:
            raise InvalidConfigError(f"{place}: settings are not nested that deep. Check aliases.")
        for key_node, value_node in node.value:
            _flatten(path, value_node, (*prefix, _key_text(path, key_node)), found)
        return
    if not prefix:
        raise InvalidConfigError(f"{place}: the file must hold settings as `name: value`.")
    if name in found:
        problem = f"is already set at {found[name].place}. Keep one of them"
        raise _bad_value(place, name, problem)
    value: str | list[str]
    if isinstance(node, yaml.SequenceNode):
        value = [_scalar_text(path, name, item) for item in node.value]
    else:
        value = _scalar_text(path, name, node)
    found[name] = Raw(value, Source.FILE, place)


def _key_text(path: Path, node: yaml.Node) -> str:
    if isinstance(node, yaml.ScalarNode) and node.value:
        return str(node.value)
    place = f"{path}:{node.start_mark.line + 1}"
    raise InvalidConfigError(f"{place}: the name of a setting must be a plain text.")


def _scalar_text(path: Path, name: str, node: yaml.Node) -> str:
    """The text as it was written: the settings table decides what it means."""
    place = f"{path}:{node.start_mark.line + 1}"
    if not isinstance(node, yaml.ScalarNode):
        raise _bad_value(place, name, "must be a single value or a list of single values")
    if node.tag == "tag:yaml.org,2002:null":
        problem = "has no value. Give it one, or remove the line for the default"
        raise _bad_value(place, name, problem)
    return str(node.value)


def _bad_value(place: str, name: str, problem: str) -> InvalidConfigError:
    return InvalidConfigError(f'{place}: "{name}" {problem}.', metadata={"key": name})


def variable_of(name: str) -> str:
    """The variable of a setting: `listen.ready.file` → `SHARECOORD_LISTEN__READY_FILE`."""
    section, _, key = name.partition(".")
    return f"{ENVIRONMENT_PREFIX}{section.upper()}__{key.upper().replace('.', '_')}"


def read_environment(environ: Mapping[str, str], names: Iterable[str]) -> dict[str, Raw]:
    """Reads the `SHARECOORD_<SECTION>__<KEY>` variables into dotted names.

    Args:
        environ: All variables.
        names: The known settings, `group.` ones included; `kafka.` keys are free.

    Raises:
        InvalidConfigError: A `SHARECOORD_` variable that nobody reads; names the nearest one.
    """
    by_variable = {variable_of(name): name for name in names}
    found: dict[str, Raw] = {}
    for variable, text in sorted(environ.items()):
        if not variable.startswith(ENVIRONMENT_PREFIX) or _belongs_elsewhere(variable, text):
            continue
        section, separator, key = variable.removeprefix(ENVIRONMENT_PREFIX).partition("__")
        name = by_variable.get(variable)
        if section == "KAFKA" and separator and key and not {"", "_"} & {key[0], key[-1]}:
            name = f"kafka.{kafka_key_of_variable(key)}" if "__" not in key else None
        if name is None:
            known = [*by_variable, *FREE_VARIABLES, "SHARECOORD_KAFKA__BOOTSTRAP_SERVERS"]
            raise unknown_name(variable, known, what="environment variable")
        found[name] = Raw(text, Source.ENVIRONMENT, variable)
    return found


def _belongs_elsewhere(variable: str, text: str) -> bool:
    if variable in FREE_VARIABLES or variable.startswith(tuple(FREE_PREFIXES)):
        return True
    is_port = variable.endswith("_PORT") and _SERVICE_LINK_PORT.match(text) is not None
    return "__" not in variable and (is_port or _SERVICE_LINK.fullmatch(variable) is not None)
