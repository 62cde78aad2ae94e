"""The file of tokens: what is read, what is refused, and how a token gets into it."""

from __future__ import annotations

import hashlib
import stat
import threading
import unicodedata
from datetime import UTC, datetime
from pathlib import Path

import pytest

from sharecoord.errors import InvalidConfigError
from sharecoord.security import tokens as module
from sharecoord.security.files import WatchedFiles
from sharecoord.security.principals import Identity, Mechanism, Principal
from sharecoord.security.scram import HASHES, make_verifier
from sharecoord.security.tokens import PREFIX, SETTING, Tokens, create_token, read_tokens

SUMS = [hashlib.sha256(text.encode()).hexdigest() for text in ("one", "two", "three")]


def read(text: str) -> Tokens:
    return read_tokens({SETTING: text.encode()})


def test_a_token_is_found_by_its_sum() -> None:
    found = read(
        f"- name: orders\n  sha256: {SUMS[0].upper()}\n  groups: [team, all]\n"
        "  expires: 2027-01-31T12:00:00+02:00\n"
        f"- {{name: orders, sha256: {SUMS[1]}}}\n"
    )
    ends_ms = round(datetime(2027, 1, 31, 10, tzinfo=UTC).timestamp() * 1000)
    principal = Principal("User:orders", frozenset({"team", "all"}))
    proofs = [bytes.fromhex(each) for each in SUMS]
    assert found.find("one") == Identity(principal, Mechanism.TOKEN, ends_ms, proofs[0])
    # Two tokens of one name hold at once.
    second = Identity(Principal("User:orders"), Mechanism.TOKEN, None, proofs[1])
    assert found.find("two") == second
    assert SUMS[1] not in repr(second)
    assert repr(proofs[1]) not in repr(second)
    assert found.find("three") is None
    assert found.find(SUMS[0]) is None
    assert found.find("") is None
    assert SUMS[0] not in repr(found.tokens)


@pytest.mark.parametrize(
    ("text", "ends"),
    [
        ("2027-01-31", datetime(2027, 1, 31, tzinfo=UTC)),
        ("2027-01-31T12:00", datetime(2027, 1, 31, 12, tzinfo=UTC)),
        ("'2027-01-31 12:00:00Z'", datetime(2027, 1, 31, 12, tzinfo=UTC)),
    ],
)
def test_ends(text: str, ends: datetime) -> None:
    (token,) = read(f"- name: a\n  sha256: {SUMS[0]}\n  expires: {text}\n").tokens
    assert token.ends_ms == round(ends.timestamp() * 1000)


def test_names_that_look_alike_are_two() -> None:
    names = ["zoé", unicodedata.normalize("NFD", "zoé"), "ZOÉ"]
    rows = [f"- name: {name}\n  sha256: {sum_}\n" for name, sum_ in zip(names, SUMS, strict=True)]
    assert len({each.name for each in read("".join(rows)).tokens}) == 3


@pytest.mark.parametrize("text", ["", "# nothing\n", "\n"])
def test_an_empty_file_says_nothing_on_purpose(text: str) -> None:
    with pytest.raises(InvalidConfigError, match=r"security\.tokens\.file: .*no entry; `\[\]`"):
        read(text)
    assert read("[]").tokens == ()


@pytest.mark.parametrize(
    ("text", "line", "problem"),
    [
        ("- {name: a, sha265: x}", 1, "unknown key 'sha265'; did you mean \"sha256\"?"),
        ("- name: a\n", 1, "a token needs `sha256:`"),
        (f"\n- sha256: {SUMS[0]}\n", 2, "a token needs `name:`"),
        ("- name: a\n  sha256: sct_secret\n", 2, "64 hexadecimal digits"),
        (f"- name: a\n  sha256: [{SUMS[0]}]\n", 2, "64 hexadecimal digits"),
        (f"- name: ''\n  sha256: {SUMS[0]}\n", 1, "the name is empty"),
        (f'- name: "a\\nb"\n  sha256: {SUMS[0]}\n', 1, "a control character"),
        (f"- name: anonymous\n  sha256: {SUMS[0]}\n", 1, "kept for callers"),
        (f"- name: a\n  sha256: {SUMS[0]}\n  groups: []\n", 3, "groups is empty"),
        (f'- name: a\n  sha256: {SUMS[0]}\n  groups: ["b\\tc"]\n', 3, "the group's name"),
        (f"- name: a\n  sha256: {SUMS[0]}\n  expires: soon\n", 3, "ISO 8601"),
        (f"- name: a\n  sha256: {SUMS[0]}\n  name: b\n", 3, "stands there twice"),
        (f"- name: a\n  sha256: {SUMS[0]}\n" * 2, 3, "stands in line 1 already"),
        ("- just a text", 1, "a token must be a mapping"),
        ("orders: {sha256: x}", 1, "the file must be a list"),
        ("- [", 2, "no YAML"),
    ],
)
def test_a_bad_line_is_named(text: str, line: int, problem: str) -> None:
    with pytest.raises(InvalidConfigError) as refused:
        read(text)
    assert refused.value.message.startswith(f"{SETTING}:{line}: ")
    assert problem in refused.value.message
    # A token that somebody wrote in the place of its sum does not get into the log.
    assert "secret" not in refused.value.message
    assert SUMS[0] not in refused.value.message


def test_no_text_is_no_yaml() -> None:
    with pytest.raises(InvalidConfigError, match="no YAML"):
        read_tokens({SETTING: b"\xff\xfe\x00"})


# -- creation -------------------------------------------------------------------------------------


def stored(path: Path) -> Tokens:
    return read_tokens({SETTING: path.read_bytes()})


def test_a_new_file_is_for_this_user_alone(tmp_path: Path) -> None:
    path = tmp_path / "tokens.yaml"
    secret = create_token(path, "orders", groups=["team"], ends_ms=1_800_000_000_000)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert secret.startswith(PREFIX)
    assert len(secret) == len(PREFIX) + 43
    assert secret not in path.read_text()
    found = stored(path).find(secret)
    principal = Principal("User:orders", frozenset({"team"}))
    assert found is not None
    assert (found.principal, found.ends_ms) == (principal, 1_800_000_000_000)
    assert [each.name for each in tmp_path.iterdir()] == ["tokens.yaml"]


def test_what_stands_in_the_file_stays(tmp_path: Path) -> None:
    path = tmp_path / "tokens.yaml"
    before = f"# who has it: see the wiki\n- name: a   # first\n  sha256: {SUMS[0]}"
    path.write_text(before)
    path.chmod(0o640)
    secret = create_token(path, "a")
    assert path.read_text().startswith(before + "\n")
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    assert stored(path).find("one") is not None
    assert stored(path).find(secret) is not None


@pytest.mark.parametrize("before", ["", "# none yet\n[]\n", "# none yet\n"])
def test_the_first_entry_of_a_file_that_is_there(tmp_path: Path, before: str) -> None:
    path = tmp_path / "tokens.yaml"
    path.write_text(before)
    create_token(path, "a")
    assert len(stored(path).tokens) == 1
    assert path.read_text().startswith("# none yet" if before else "- name: a")


@pytest.mark.parametrize(
    "before", [f"[{{name: a, sha256: {SUMS[0]}}}]", f"  - name: a\n    sha256: {SUMS[0]}\n"]
)
def test_a_file_that_can_not_be_added_to_stays_as_it_is(tmp_path: Path, before: str) -> None:
    path = tmp_path / "tokens.yaml"
    path.write_text(before)
    with pytest.raises(InvalidConfigError, match="nothing can be added"):
        create_token(path, "a")
    assert path.read_text() == before


def test_a_link_stays_a_link(tmp_path: Path) -> None:
    real, link = tmp_path / "real.yaml", tmp_path / "tokens.yaml"
    real.write_text("[]")
    link.symlink_to(real)
    create_token(link, "a")
    assert link.is_symlink()
    assert len(stored(real).tokens) == 1


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("", "is empty"),
        ("a\nb", "control character"),
        ("a\u200bb", "can not be seen"),
        ("x" * 250, "more than 249"),
        ("a:b", "colon"),
        ("anonymous", "kept for callers"),
    ],
)
def test_a_name_that_no_token_can_have(tmp_path: Path, name: str, problem: str) -> None:
    with pytest.raises(InvalidConfigError, match=problem):
        create_token(tmp_path / "tokens.yaml", name)
    with pytest.raises(InvalidConfigError, match="group's name"):
        create_token(tmp_path / "tokens.yaml", "a", groups=["b\n"])
    assert list(tmp_path.iterdir()) == []


def test_a_failed_write_leaves_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "tokens.yaml"
    path.write_text("[]")

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(module.os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        create_token(path, "a")
    assert path.read_text() == "[]"
    assert [each.name for each in tmp_path.iterdir()] == ["tokens.yaml"]


def test_no_token_is_lost_when_many_are_created_at_once(tmp_path: Path) -> None:
    path = tmp_path / "tokens.yaml"
    threads = [threading.Thread(target=create_token, args=(path, f"n{i}")) for i in range(8)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert {each.name for each in stored(path).tokens} == {f"n{i}" for i in range(8)}


# -- a file that changes --------------------------------------------------------------------------


def test_an_entry_that_goes_away_is_revoked_and_a_bad_file_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "tokens.yaml"
    first, second = create_token(path, "a"), create_token(path, "a")
    files = WatchedFiles({SETTING: str(path)}, read_tokens)
    identities = [files.value.find(each) for each in (first, second)]
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(lines[2:]))
    assert files.look()
    assert [files.value.has(each) for each in identities if each] == [False, True]
    assert files.value.find(first) is None
    assert files.value.find(second) is not None
    path.write_text("")
    assert not files.look()
    assert "no entry" in files.problem
    assert files.value.find(second) is not None


# -- SCRAM ----------------------------------------------------------------------------------------


def test_a_token_for_scram_is_made_and_read(tmp_path: Path) -> None:
    path = tmp_path / "tokens.yaml"
    plain = create_token(path, "orders")
    secrets = [create_token(path, "orders", scram=True) for _ in range(2)]
    tokens = read_tokens({SETTING: path.read_bytes()})
    assert tokens.scram_mechanisms == set(HASHES)
    for mechanism in HASHES:
        found = tokens.verifiers(mechanism, "orders")
        # One salt for both: a server names it before it hears which of them it is.
        assert len({(each.salt, each.iterations) for each, _ in found}) == 1
        for secret, (verifier, identity) in zip(secrets, found, strict=True):
            assert verifier == make_verifier(mechanism, secret, verifier.salt)
            assert tokens.has(identity)
            assert identity == tokens.find(secret)
    assert tokens.find(plain) is not None
    assert not tokens.verifiers("SCRAM-SHA-256", "bills")
    create_token(path, "bills", scram=True)
    tokens = read_tokens({SETTING: path.read_bytes()})
    salts = {tokens.verifiers("SCRAM-SHA-256", name)[0][0].salt for name in ("orders", "bills")}
    assert len(salts) == 2


def scram_entry(sum_: str, *verifiers: str) -> str:
    lines = "".join(f"\n  - {each}" for each in verifiers)
    return f"- name: a\n  sha256: {sum_}\n  scram:{lines}\n"


ONE, TWO = (str(make_verifier("SCRAM-SHA-256", "x", salt)) for salt in (b"one", b"two"))


@pytest.mark.parametrize(
    ("text", "line", "problem"),
    [
        (scram_entry(SUMS[0], "sct_secret"), 4, "an entry of `scram:` must be MECHANISM"),
        (scram_entry(SUMS[0], ONE, ONE), 5, "has SCRAM-SHA-256 twice"),
        (scram_entry(SUMS[0], ONE) + scram_entry(SUMS[1], TWO), 5, "another salt"),
    ],
)
def test_a_bad_line_of_scram_is_named_and_not_quoted(text: str, line: int, problem: str) -> None:
    with pytest.raises(InvalidConfigError, match=problem) as raised:
        read(text)
    assert f"{SETTING}:{line}:" in raised.value.message
    assert "secret" not in raised.value.message
    assert ONE not in raised.value.message
