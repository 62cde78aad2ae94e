"""Tokens of a file: random secrets, of which the file has the SHA-256 sums only.

`sharecoord tokens create NAME` writes an entry and prints the secret once. The file is a list, in
which a name may stand more than once, so that a new token can be handed out before the old one is
taken away. Whoever removes an entry revokes the token::

    - name: orders-worker
      sha256: 3f0c…
      groups: [orders-team]
      expires: 2027-01-31T12:00:00Z
      scram:
        - SCRAM-SHA-256$4096:W22Z…$WG5d…:wfPL…

`groups`, `expires` and `scram` may be left out. `scram` is what SASL's SCRAM needs of the same
token; all entries of one name have the same salt, because a server names the salt before it hears
which of the tokens it is. A date alone is its first moment; without a zone it is UTC.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import secrets
import stat
import tempfile
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import yaml

from sharecoord.errors import InvalidConfigError
from sharecoord.security.nodes import Nodes, line_of
from sharecoord.security.principals import (
    USER,
    Identity,
    Mechanism,
    Principal,
    name_problem,
    user_problem,
)
from sharecoord.security.scram import (
    HASHES,
    ITERATIONS,
    SALT_BYTES,
    Verifier,
    make_verifier,
    read_verifier,
)

SETTING: Final = "security.tokens.file"

PREFIX: Final = "sct_"
"""Begins every token that is made here, so that scanners for leaked secrets find it."""

SECRET_BYTES: Final = 32
"""Random bytes of a token: nobody guesses 256 bits, which is why a plain SHA-256 protects them."""

NAME_CHARS_MAX: Final = 249
"""Longest name of a token that is made here, as of Kafka's topics."""

_SHA256: Final = re.compile(r"[0-9a-fA-F]{64}", re.ASCII)
_KEYS: Final = ("name", "sha256", "groups", "expires", "scram")
_FILE: Final = Nodes(SETTING)


@dataclass(frozen=True, slots=True)
class Token:
    """One entry of the file."""

    line: int
    name: str
    digest: bytes = field(repr=False)
    """SHA-256 of the secret."""
    groups: tuple[str, ...] = ()
    ends_ms: int | None = None
    """Unix time from which the token is refused; None = it has no end."""
    scram: tuple[Verifier, ...] = field(default=(), repr=False)
    """What the mechanisms of SCRAM keep of the secret."""


class Tokens:
    """All tokens of a file."""

    def __init__(self, tokens: Iterable[Token]) -> None:
        self.tokens = tuple(tokens)
        self._identities = {each.digest: _identity(each) for each in self.tokens}
        self._verifiers: defaultdict[tuple[str, str], list[tuple[Verifier, Identity]]]
        self._verifiers = defaultdict(list)
        for each in self.tokens:
            for verifier in each.scram:
                found = verifier, self._identities[each.digest]
                self._verifiers[verifier.mechanism, each.name].append(found)
        self.scram_mechanisms = frozenset(mechanism for mechanism, _ in self._verifiers)
        """The mechanisms of SCRAM for which there is a token."""

    def find(self, secret: str) -> Identity | None:
        """The identity of a token's holder, which may have ended; None = there is no such token.

        Every secret takes the same steps: what is compared is its SHA-256, of which nobody can
        choose the beginning, so the time that a comparison takes tells nothing.
        """
        return self._identities.get(_digest(secret))

    def verifiers(self, mechanism: str, name: str) -> Sequence[tuple[Verifier, Identity]]:
        """What a mechanism of SCRAM keeps of the tokens of a name, and what each proves."""
        return self._verifiers.get((mechanism, name), ())

    def has(self, identity: Identity) -> bool:
        """Whether the token of an identity that `find` gave is still there, as it was."""
        return self._identities.get(identity.proof) == identity


def _digest(secret: str) -> bytes:
    return hashlib.sha256(secret.encode(errors="surrogatepass")).digest()


def _identity(token: Token) -> Identity:
    principal = Principal(USER + token.name, frozenset(token.groups))
    return Identity(principal, Mechanism.TOKEN, token.ends_ms, token.digest)


# -- the file -------------------------------------------------------------------------------------


def read_tokens(contents: Mapping[str, bytes]) -> Tokens:
    """Reads the file of `security.tokens.file`, as `WatchedFiles` hands it over.

    Raises:
        InvalidConfigError: It is no such file; names the line and the fix, and quotes no sum.
    """
    document = _FILE.document(contents[SETTING])
    if document is None:
        raise InvalidConfigError(
            f"{SETTING}: the file has no entry; `[]` says on purpose that nobody has a token"
        )
    lines: dict[bytes, int] = {}
    tokens: list[Token] = []
    for node in _FILE.items(document, "the file"):
        token = _token(node)
        if token.digest in lines:
            raise _FILE.bad(token.line, f"the sum stands in line {lines[token.digest]} already")
        lines[token.digest] = token.line
        tokens.append(token)
    _check_salts(tokens)
    return Tokens(tokens)


def _check_salts(tokens: Iterable[Token]) -> None:
    """Refuses tokens of one name of which a server could not say with which salt to begin."""
    firsts: dict[tuple[str, str], tuple[bytes, int]] = {}
    for token in tokens:
        for each in token.scram:
            own = each.salt, each.iterations
            if firsts.setdefault((token.name, each.mechanism), own) != own:
                raise _FILE.bad(
                    token.line,
                    f"`scram:` has another salt or other iterations for {each.mechanism} than an "
                    "entry of the same name above; `sharecoord tokens create --scram` takes the "
                    "same",
                )


def _token(node: yaml.Node) -> Token:
    entry = {key: (line, value) for key, line, value in _FILE.entries(node, _KEYS, "a token")}
    for key in ("name", "sha256"):
        if key not in entry:
            raise _FILE.bad(line_of(node), f"a token needs `{key}:`")
    line, name = _text(entry["name"])
    problem = user_problem(name)
    if problem:
        raise _FILE.bad(line, f"the name {problem}")
    line, digits = _text(entry["sha256"])
    if not _SHA256.fullmatch(digits):
        raise _FILE.bad(
            line,
            "`sha256:` must be the 64 hexadecimal digits of the token's SHA-256, never the token",
        )
    return Token(
        line_of(node),
        name,
        bytes.fromhex(digits),
        tuple(_groups(entry["groups"][1])) if "groups" in entry else (),
        _ends_ms(*_text(entry["expires"])) if "expires" in entry else None,
        tuple(_scram(entry["scram"][1])) if "scram" in entry else (),
    )


def _scram(node: yaml.Node) -> Iterator[Verifier]:
    seen: set[str] = set()
    for text, line in _FILE.texts(node, "scram"):
        try:
            found = read_verifier(text)
        except ValueError as error:
            raise _FILE.bad(line, f"an entry of `scram:` must {error}") from None
        if found.mechanism in seen:
            raise _FILE.bad(line, f"`scram:` has {found.mechanism} twice")
        seen.add(found.mechanism)
        yield found


def _text(entry: tuple[int, yaml.Node]) -> tuple[int, str]:
    line, node = entry
    return line, str(node.value) if isinstance(node, yaml.ScalarNode) else ""


def _groups(node: yaml.Node) -> Iterator[str]:
    for name, line in _FILE.texts(node, "groups"):
        problem = name_problem(name)
        if problem:
            raise _FILE.bad(line, f"the group's name {problem}")
        yield name


def _ends_ms(line: int, text: str) -> int:
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        raise _FILE.bad(
            line,
            "`expires:` must be a date or a time of ISO 8601, such as 2027-01-31 or "
            "2027-01-31T12:00:00Z",
        ) from None
    return round((at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp() * 1000)


# -- a new token ----------------------------------------------------------------------------------


def create_token(
    path: Path,
    name: str,
    *,
    groups: Sequence[str] = (),
    ends_ms: int | None = None,
    scram: bool = False,
) -> str:
    """Adds an entry to the file, which is made when it is not there; returns the new secret.

    With `scram` the entry has what the mechanisms of SCRAM need, too.

    What stands in the file stays as it is, comments included. A new file is for this user alone; a
    file that was there keeps its owner and mode. No reader ever sees a half of the file.

    Raises:
        InvalidConfigError: The name can not be one, or the file can not be read or added to.
        OSError: What the file system says.
    """
    _check_names(name, groups)
    secret = PREFIX + secrets.token_urlsafe(SECRET_BYTES)
    added: dict[str, object] = {"name": name, "sha256": _digest(secret).hex()}
    if groups:
        added["groups"] = list(groups)
    if ends_ms is not None:
        added["expires"] = datetime.fromtimestamp(ends_ms / 1000, UTC).isoformat(timespec="seconds")
    path = path.resolve()
    with _locked(path.parent) as directory:
        old = path.read_bytes() if path.exists() else b""
        if scram:
            added["scram"] = [str(each) for each in _new_verifiers(old, name, secret)]
        _write(path, _with_entry(old, added))
        os.fsync(directory)
    return secret


def _check_names(name: str, groups: Sequence[str]) -> None:
    problem = user_problem(name)
    if not problem and len(name) > NAME_CHARS_MAX:
        problem = f"has more than {NAME_CHARS_MAX} characters"
    if not problem and ":" in name:
        problem = "has a colon, at which a user name of HTTP's Basic ends"
    if problem:
        raise InvalidConfigError(f"the token's name {problem}; choose another one")
    for group in groups:
        problem = name_problem(group)
        if problem:
            raise InvalidConfigError(f"a group's name {problem}; choose another one")


def _new_verifiers(old: bytes, name: str, secret: str) -> Iterator[Verifier]:
    """Verifiers of a new token, with the salt of the name's other tokens if there are some."""
    tokens = None if _FILE.document(old) is None else read_tokens({SETTING: old})
    for mechanism in HASHES:
        salt, iterations = secrets.token_bytes(SALT_BYTES), ITERATIONS
        if tokens is not None and (before := tokens.verifiers(mechanism, name)):
            salt, iterations = before[0][0].salt, before[0][0].iterations
        yield make_verifier(mechanism, secret, salt, iterations)


def _with_entry(old: bytes, added: Mapping[str, object]) -> bytes:
    """The content of a file with one more entry."""
    is_empty = _FILE.document(old) is None
    before = () if is_empty else read_tokens({SETTING: old}).tokens
    if not before:
        # `[]` has to go; comments stay.
        old = b"".join(line for line in old.splitlines(keepends=True) if line.startswith(b"#"))
    elif not old.endswith(b"\n"):
        old += b"\n"
    new = old + yaml.safe_dump([added], sort_keys=False, allow_unicode=True).encode()
    count = 0
    with suppress(InvalidConfigError):
        count = len(read_tokens({SETTING: new}).tokens)
    if count != len(before) + 1:
        raise InvalidConfigError(
            f"{SETTING}: nothing can be added behind what stands there; let each entry begin with "
            "`- ` at the beginning of a line"
        )
    return new


@contextmanager
def _locked(directory: Path) -> Iterator[int]:
    """Keeps others from adding to a file of the directory at the same time; gives its descriptor.

    The file itself can not be locked, since another one takes its place.
    """
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield descriptor
    finally:
        os.close(descriptor)


def _write(path: Path, content: bytes) -> None:
    """Puts a whole file in the place of the old one, with its owner and mode."""
    descriptor, part = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(descriptor, "wb") as file:
            with suppress(FileNotFoundError):
                was = path.stat()
                os.fchown(descriptor, was.st_uid, was.st_gid)
                os.fchmod(descriptor, stat.S_IMODE(was.st_mode))
            file.write(content)
            file.flush()
            os.fsync(descriptor)
        Path(part).replace(path)
    except BaseException:
        with suppress(FileNotFoundError):
            Path(part).unlink()
        raise
