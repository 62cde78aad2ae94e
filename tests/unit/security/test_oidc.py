"""JSON Web Tokens: good ones, and every way in which one can be wrong."""

from __future__ import annotations

import unicodedata
from pathlib import Path
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives import hmac as hmac_of
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.hashes import SHA256

from sharecoord.errors import InvalidConfigError, KeysUnavailableError, UnauthenticatedError
from sharecoord.security import oidc as module
from sharecoord.security.files import WatchedFiles
from sharecoord.security.keys import ALGORITHMS, SETTING, FileKeys, read_key_file, read_key_set
from sharecoord.security.oidc import TOKEN_CHARS_MAX, Oidc
from sharecoord.security.principals import Identity, Mechanism, Principal
from tests.unit.security.support import (
    AUDIENCE,
    EC_KEY,
    ISSUER,
    NOW_MS,
    RSA_KEY,
    Clock,
    PrivateKey,
    claims,
    jwk,
    key_set,
    segment,
    signed,
    token_of,
)

SKEW_MS = 30_000


class FixedKeys:
    """Keys that a test sets, and the key ids that were looked for."""

    def __init__(self, *entries: object) -> None:
        self.value = read_key_set(key_set(*entries)) if entries else None
        self.looked: list[str] = []

    async def look_for(self, key_id: str) -> None:
        self.looked.append(key_id)


def oidc_of(keys: Any, clock: Clock | None = None, **more: Any) -> Oidc:
    settings = {"issuer": ISSUER, "audience": AUDIENCE, "clock_skew_ms": SKEW_MS}
    settings |= {"principal_claim": "sub", "groups_claim": "groups", **more}
    return Oidc(keys=keys, now_ms=clock or Clock(), **settings)


@pytest.fixture
def keys() -> FixedKeys:
    return FixedKeys(jwk(RSA_KEY))


@pytest.fixture
def oidc(keys: FixedKeys) -> Oidc:
    return oidc_of(keys)


async def problem_of(oidc: Oidc, token: str) -> str:
    with pytest.raises(UnauthenticatedError) as refused:
        await oidc.identify(token)
    assert oidc.known(token) is None
    return refused.value.message


# -- good tokens ----------------------------------------------------------------------------------


async def test_a_good_token(oidc: Oidc) -> None:
    identity = await oidc.identify(signed(groups=["team", "all"]))
    principal = Principal("User:anna", frozenset({"team", "all"}))
    # The skew lets new calls in as long as it leaves open streams alone.
    assert identity == Identity(principal, Mechanism.OIDC, NOW_MS + 600_000 + SKEW_MS)


EVERY_KEY: list[tuple[str, PrivateKey]] = [
    *((name, RSA_KEY) for name in ALGORITHMS if name[:2] in ("RS", "PS")),
    ("ES256", EC_KEY),
    ("ES384", ec.generate_private_key(ec.SECP384R1())),
    ("ES512", ec.generate_private_key(ec.SECP521R1())),
    ("EdDSA", ed25519.Ed25519PrivateKey.generate()),
]


@pytest.mark.parametrize(("algorithm", "key"), EVERY_KEY)
async def test_every_algorithm(algorithm: str, key: PrivateKey) -> None:
    oidc = oidc_of(FixedKeys(jwk(key, "k7", alg=algorithm, use="sig")))
    identity = await oidc.identify(signed(key, algorithm=algorithm, key_id="k7"))
    assert identity.principal.name == "User:anna"


async def test_a_list_of_audiences_and_claims_of_other_names() -> None:
    oidc = oidc_of(FixedKeys(jwk(RSA_KEY)), principal_claim="email", groups_claim="https://x/roles")
    token = signed(aud=["other", AUDIENCE], email="anna@example.org", **{"https://x/roles": "ops"})
    principal = Principal("User:anna@example.org", frozenset({"ops"}))
    assert (await oidc.identify(token)).principal == principal


async def test_a_token_without_a_key_id_may_be_of_any_key() -> None:
    other = rsa.generate_private_key(65537, 2048)
    keys = FixedKeys(jwk(other, "old"), jwk(EC_KEY, "ec"), jwk(RSA_KEY, None))
    await oidc_of(keys).identify(signed(key_id=None))
    assert keys.looked == []
    assert "not signed with a key" in await problem_of(
        oidc_of(FixedKeys(jwk(other, "old"))), signed(key_id=None)
    )


async def test_the_clocks_may_differ_a_little(oidc: Oidc) -> None:
    now_s = NOW_MS // 1000
    await oidc.identify(signed(nbf=now_s + 30, iat=now_s + 30))
    await oidc.identify(signed(exp=now_s - 29))
    await oidc.identify(signed(exp=now_s + 0.5, iat=None))


# -- wrong tokens ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("more", "problem"),
    [
        ({"exp": NOW_MS // 1000 - 30}, "the token has expired"),
        ({"exp": None}, "no `exp`"),
        ({"exp": "tomorrow"}, "`exp` is no time"),
        ({"exp": True}, "`exp` is no time"),
        ({"exp": float("nan")}, "`exp` is no time"),
        ({"exp": float("inf")}, "`exp` is no time"),
        ({"nbf": NOW_MS // 1000 + 31}, "not valid yet (its `nbf`"),
        ({"iat": NOW_MS // 1000 + 31}, "not valid yet (its `iat`"),
        ({"iat": [1]}, "`iat` is no time"),
        ({"aud": "another"}, "security.oidc.audience"),
        ({"aud": ["another", "sharecoord2"]}, "security.oidc.audience"),
        ({"aud": AUDIENCE.upper()}, "security.oidc.audience"),
        ({"aud": None}, "no `aud`"),
        ({"aud": {"sharecoord": 1}}, "security.oidc.audience"),
        ({"iss": ISSUER + "/"}, "security.oidc.issuer"),
        ({"iss": None}, "no `iss`"),
        ({"sub": None}, "claim `sub` is not there as a text"),
        ({"sub": ""}, "claim `sub` is empty"),
        ({"sub": 7}, "no JSON Web Token that can be read"),
        ({"sub": "anna\nUser:root"}, "a control character"),
        ({"sub": "an\u202ena"}, "can not be seen"),
        ({"sub": "\ud800"}, "can not be seen"),
        ({"sub": "x" * 2_049}, "more than 2048"),
        ({"sub": "anonymous"}, "kept for callers"),
        ({"groups": 5}, "claim `groups`"),
        ({"groups": ["a", 5]}, "claim `groups`"),
        ({"groups": ["a", "b\n"]}, "claim `groups`"),
        ({"groups": {"a": "b"}}, "claim `groups`"),
    ],
)
async def test_a_claim_that_is_wrong(oidc: Oidc, more: dict[str, Any], problem: str) -> None:
    token = signed(**more)
    message = await problem_of(oidc, token)
    assert problem in message
    assert token not in message


async def test_an_end_beyond_all_years_is_an_end(oidc: Oidc) -> None:
    identity = await oidc.identify(signed(exp=10**300))
    assert identity.ends_ms == 253_402_300_799_000 + SKEW_MS


def unsigned(algorithm: str) -> str:
    return token_of({"alg": algorithm, "typ": "JWT", "kid": "k1"}, claims(), b"")


@pytest.mark.parametrize("algorithm", ["none", "None", "NONE", "nOnE", ""])
async def test_an_unsigned_token_is_refused(oidc: Oidc, keys: FixedKeys, algorithm: str) -> None:
    assert "not signed with one of RS256" in await problem_of(oidc, unsigned(algorithm))
    assert "not signed with one of RS256" in await problem_of(oidc, unsigned(algorithm) + "eHg")
    assert keys.looked == []


@pytest.mark.parametrize("form", ["PEM", "DER", "JWK"])
async def test_hs256_with_the_public_key_is_refused(oidc: Oidc, form: str) -> None:
    public = RSA_KEY.public_key()
    info = serialization.PublicFormat.SubjectPublicKeyInfo
    secret = {
        "PEM": public.public_bytes(serialization.Encoding.PEM, info),
        "DER": public.public_bytes(serialization.Encoding.DER, info),
        "JWK": key_set(jwk(RSA_KEY)),
    }[form]
    signing = f"{segment({'alg': 'HS256', 'kid': 'k1'})}.{segment(claims())}"
    mac = hmac_of.HMAC(secret, SHA256())
    mac.update(signing.encode())
    token = f"{signing}.{segment(mac.finalize())}"
    # The forgery is a good one for whoever takes the public key for a secret.
    if form == "DER":
        assert (
            jwt.api_jws.PyJWS()
            .get_algorithm_by_name("HS256")
            .verify(signing.encode(), secret, _signature(token))
        )
    assert "not signed with one of RS256" in await problem_of(oidc, token)


def _signature(token: str) -> bytes:
    return jwt.utils.base64url_decode(token.rpartition(".")[2])


async def test_a_key_of_another_kind_is_refused(oidc: Oidc) -> None:
    assert "not signed with a key" in await problem_of(oidc, signed(EC_KEY, algorithm="ES256"))
    keys = FixedKeys(jwk(RSA_KEY, alg="RS256"))
    assert "not signed with a key" in await problem_of(oidc_of(keys), signed(algorithm="RS512"))


async def test_another_key_of_the_same_id_is_refused(oidc: Oidc) -> None:
    other = rsa.generate_private_key(65537, 2048)
    assert "not signed with a key" in await problem_of(oidc, signed(other))


async def test_a_changed_token_is_refused(oidc: Oidc) -> None:
    header, _, signature = signed().split(".")
    forged = f"{header}.{segment(claims(sub='root'))}.{signature}"
    assert "not signed with a key" in await problem_of(oidc, forged)


async def test_an_unknown_key_id_is_looked_for(oidc: Oidc, keys: FixedKeys) -> None:
    assert "not signed with a key" in await problem_of(oidc, signed(key_id="k2"))
    assert keys.looked == ["k2"]


async def test_addresses_of_keys_in_a_token_are_not_followed(oidc: Oidc) -> None:
    other = rsa.generate_private_key(65537, 2048)
    headers = {"kid": "k1", "jku": "https://evil.example", "jwk": jwk(other)}
    token = jwt.encode(claims(), other, algorithm="RS256", headers=headers)
    assert "not signed with a key" in await problem_of(oidc, token)


@pytest.mark.parametrize(
    "token",
    [
        "..",
        "a.b.c",
        "é.é.é",
        "\ud800.a.b",
        token_of([], claims(), b""),
        token_of({"alg": "RS256", "kid": 5}, claims(), b"x"),
        token_of({"alg": "RS256", "kid": "k1", "crit": ["new"]}, claims(), b"x"),
        token_of({"alg": "RS256", "kid": "k1", "b64": False, "crit": ["b64"]}, b"", b"x"),
        token_of(b"[" * 5_000, claims(), b"x"),
    ],
)
async def test_what_is_no_token_is_refused(oidc: Oidc, token: str) -> None:
    assert "no JSON Web Token that can be read" in await problem_of(oidc, token)


async def test_a_signed_text_that_is_no_object(oidc: Oidc) -> None:
    token = jwt.api_jws.PyJWS().encode(b"[1]", RSA_KEY, "RS256", headers={"kid": "k1"})
    assert "no JSON Web Token that can be read" in await problem_of(oidc, token)


async def test_a_token_of_a_megabyte_is_refused_unread(
    oidc: Oidc, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "jwt", None)
    monkeypatch.setattr(module, "_digest", None)
    with pytest.raises(UnauthenticatedError, match=f"more than {TOKEN_CHARS_MAX} characters"):
        await oidc.identify("x." * (1 << 19))


async def test_names_that_look_alike_are_two(oidc: Oidc) -> None:
    names = ["zoé", unicodedata.normalize("NFD", "zoé"), "Zoé", "z\u043e\u00e9"]
    found = {(await oidc.identify(signed(sub=name))).principal for name in names}
    assert {each.name for each in found} == {f"User:{name}" for name in names}


# -- what is known --------------------------------------------------------------------------------


async def test_a_token_is_checked_once_until_it_ends(
    keys: FixedKeys, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock()
    oidc = oidc_of(keys, clock)
    token = signed()
    identity = await oidc.identify(token)
    with monkeypatch.context() as without:
        without.setattr(module, "jwt", None)
        assert oidc.known(token) is identity
        assert await oidc.identify(token) is identity
    clock.now_ms += 600_000 + SKEW_MS
    assert "expired" in await problem_of(oidc, token)


async def test_what_is_known_ends_with_the_keys(tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    path.write_bytes(key_set(jwk(RSA_KEY)))
    files = WatchedFiles({SETTING: str(path)}, read_key_file)
    oidc = oidc_of(FileKeys(files))
    token, newer = signed(), signed(EC_KEY, algorithm="ES256", key_id="k2")
    await oidc.identify(token)
    path.write_bytes(b"half of a fi")
    assert not files.look()
    assert oidc.known(token) is not None
    path.write_bytes(key_set(jwk(EC_KEY, "k2")))
    assert files.look()
    assert "not signed with a key" in await problem_of(oidc, token)
    await oidc.identify(newer)
    assert oidc.known(newer) is not None


async def test_the_oldest_known_token_goes_first(
    oidc: Oidc, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "IDENTITIES_KEPT", 2)
    tokens = [signed(EC_KEY, algorithm="ES256", sub=name) for name in "abc"]
    oidc = oidc_of(FixedKeys(jwk(EC_KEY)))
    await oidc.identify(tokens[0])
    await oidc.identify(tokens[1])
    assert oidc.known(tokens[0]) is not None
    await oidc.identify(tokens[2])
    assert [oidc.known(each) is not None for each in tokens] == [True, False, True]


async def test_without_keys_nobody_knows() -> None:
    with pytest.raises(KeysUnavailableError) as unknown:
        await oidc_of(FixedKeys()).identify(signed())
    assert unknown.value.retriable


# -- key sets -------------------------------------------------------------------------------------


def test_keys_that_can_not_verify_are_left_out() -> None:
    short = rsa.generate_private_key(65537, 1024)
    found = read_key_set(
        key_set(
            jwk(RSA_KEY, "good"),
            jwk(RSA_KEY, "encryption", use="enc"),
            jwk(RSA_KEY, "wrap", key_ops=["wrapKey"]),
            jwk(RSA_KEY, "hmac", alg="HS256"),
            jwk(EC_KEY, "curve", alg="ES512"),
            jwk(ec.generate_private_key(ec.SECP256K1()), "bitcoin"),
            jwk(RSA_KEY, 5),  # type: ignore[arg-type]
            jwk(RSA_KEY, "odd", n=7),
            jwk(EC_KEY, "off the curve", x="A" * 43),
            jwk(short, "short"),
            {"kty": "oct", "kid": "secret", "k": "c2VjcmV0"},
            "no key",
        )
    )
    assert [key.key_id for key in found.keys] == ["good"]


async def test_a_private_key_that_was_published_verifies_as_its_public_half() -> None:
    entry = jwt.algorithms.RSAAlgorithm.to_jwk(RSA_KEY, as_dict=True) | {"kid": "k1"}
    await oidc_of(FixedKeys(entry)).identify(signed())
    assert not hasattr(FixedKeys(entry).value.keys[0].public, "sign")  # type: ignore[union-attr]


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"<html>",
        b"[]",
        b"{}",
        b'{"keys": {}}',
        b'{"keys": []}',
        b"[" * 100_000,
        b"\xff",
        key_set(*([jwk(EC_KEY)] * 101)),
        key_set({"kty": "oct", "k": "c2VjcmV0"}),
    ],
)
def test_what_is_no_key_set_is_refused(content: bytes) -> None:
    with pytest.raises(InvalidConfigError, match=r"security\.oidc\.jwks"):
        read_key_set(content)
