"""Which credentials count, what becomes of wrong ones, and who waits for what."""

from __future__ import annotations

import asyncio
import base64
import os
import subprocess
import sys
from pathlib import Path

import pytest
from cryptography import x509

from sharecoord.config.process_settings import CertificateName
from sharecoord.errors import (
    KeysUnavailableError,
    LimitExceededError,
    SharecoordError,
    UnauthenticatedError,
)
from sharecoord.security import authenticator as module
from sharecoord.security.authenticator import (
    AUTHORIZATION_CHARS_MAX,
    Authenticator,
    socket_identity,
)
from sharecoord.security.certificates import CertificateNames
from sharecoord.security.files import WatchedFiles
from sharecoord.security.oidc import Oidc
from sharecoord.security.principals import NOBODY, Credentials, Identity, Mechanism, Principal
from sharecoord.security.slowdown import WAITING_MAX
from sharecoord.security.tokens import SETTING, create_token, read_tokens
from tests.unit.security.support import (
    NOW,
    NOW_MS,
    RSA_KEY,
    Clock,
    basic,
    certificate,
    jwk,
    signed,
)
from tests.unit.security.test_oidc import FixedKeys, oidc_of

ADDRESS, OTHER = "10.0.0.1:4711", "10.0.0.2:4711"
PEM = certificate(x509.DNSName("orders.example"))
SOCKET = Identity(Principal("User:socket"), Mechanism.SOCKET)


class World:
    """A file of tokens, a provider's keys, and a clock."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "tokens.yaml"
        self.clock = Clock()
        self.secret = create_token(self.path, "orders", groups=["team"])
        self.ended = create_token(self.path, "old", ends_ms=NOW_MS)
        self.files = WatchedFiles({SETTING: str(self.path)}, read_tokens)
        self.keys = FixedKeys(jwk(RSA_KEY))
        self.oidc: Oidc = oidc_of(self.keys, self.clock)
        names = (CertificateName.URI, CertificateName.DNS)
        self.all = Authenticator(
            tokens=self.files,
            oidc=self.oidc,
            certificates=CertificateNames(names),
            socket=SOCKET,
            now_ms=self.clock,
            sleep=self.clock.sleep,
        )

    def bare(self, *, must_prove: bool = False) -> Authenticator:
        return Authenticator(must_prove=must_prove, now_ms=self.clock, sleep=self.clock.sleep)


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


async def name_of(authenticator: Authenticator, authorization: str, pem: bytes = b"") -> str:
    shown = Credentials(authorization, pem)
    identity = await authenticator.identify(shown, ADDRESS)
    assert authenticator.known(shown) == identity
    return identity.principal.name


async def refusal(authenticator: Authenticator, authorization: str, pem: bytes = b"") -> str:
    with pytest.raises(UnauthenticatedError) as refused:
        await authenticator.identify(Credentials(authorization, pem), ADDRESS)
    assert authenticator.known(Credentials(authorization, pem)) is None
    return refused.value.message


# -- what counts ----------------------------------------------------------------------------------


async def test_what_a_call_brings_wins_over_its_connection(world: World) -> None:
    assert await name_of(world.all, f"Bearer {world.secret}", PEM) == "User:orders"
    assert await name_of(world.all, "", PEM) == "User:orders.example"
    assert await name_of(world.all, "") == "User:socket"
    assert await name_of(world.bare(), "") == "User:anonymous"


async def test_a_wrong_token_is_not_made_good_by_a_certificate(world: World) -> None:
    assert "not good here" in await refusal(world.all, "Bearer sct_wrong", PEM)
    assert "no JSON Web Token" in await refusal(world.all, "Bearer a.b.c", PEM)
    assert "of no kind that is checked" in await refusal(world.all, "Digest x", PEM)


async def test_every_form_of_a_good_credential(world: World) -> None:
    for scheme in ("Bearer", "bearer", "BEARER"):
        assert await name_of(world.all, f"{scheme} {world.secret}") == "User:orders"
    assert await name_of(world.all, basic("orders", world.secret)) == "User:orders"
    assert await name_of(world.all, f"Bearer {signed()}") == "User:anna"
    identity = await world.all.identify(Credentials(f"Bearer {world.secret}"), ADDRESS)
    assert identity.principal == Principal("User:orders", frozenset({"team"}))
    assert (identity.mechanism, identity.ends_ms) == (Mechanism.TOKEN, None)


async def test_a_json_web_token_is_known_once_it_was_checked(world: World) -> None:
    shown = Credentials(f"Bearer {signed()}")
    assert world.all.known(shown) is None
    identity = await world.all.identify(shown, ADDRESS)
    assert world.all.known(shown) is identity


@pytest.mark.parametrize(
    ("name", "password"),
    [
        ("other", "{secret}"),
        ("Orders", "{secret}"),
        ("orders ", "{secret}"),
        ("\u043erders", "{secret}"),
        ("", "{secret}"),
        ("orders", "{secret} "),
        ("orders", ""),
        ("orders", "wrong"),
        ("nobody-has-this-name", "wrong"),
    ],
)
async def test_a_user_name_and_password_that_are_wrong(
    world: World, name: str, password: str
) -> None:
    shown = basic(name, password.format(secret=world.secret))
    # The same text for all: nobody learns which names there are.
    assert await refusal(world.all, shown) == module._WRONG


@pytest.mark.parametrize("value", ["", "!!!", "b3JkZXJz", base64.b64encode(b"\xff:\xff").decode()])
async def test_what_is_no_user_name_and_password(world: World, value: str) -> None:
    message = await refusal(world.all, f"Basic {value}")
    assert message in (module._WRONG, module._NO_SCHEME)


async def test_credentials_that_have_ended(world: World) -> None:
    assert "have expired" in await refusal(world.all, f"Bearer {world.ended}")
    assert "have expired" in await refusal(world.all, basic("old", world.ended))
    # A certificate can end while its connection is open.
    ended = certificate(x509.DNSName("a.example"), ends=NOW)
    assert "have expired" in await refusal(world.all, "", ended)
    assert "the token has expired" in await refusal(world.all, f"Bearer {signed(exp=1)}")


async def test_a_known_credential_is_refused_from_the_moment_of_its_end(world: World) -> None:
    shown = Credentials(f"Bearer {create_token(world.path, 'short', ends_ms=NOW_MS + 1_000)}")
    assert world.files.look()
    assert world.all.known(shown) is not None
    world.clock.now_ms += 999
    assert world.all.known(shown) is not None
    world.clock.now_ms += 1
    assert world.all.known(shown) is None
    with pytest.raises(UnauthenticatedError):
        await world.all.identify(shown, ADDRESS)


async def test_a_token_without_its_entry_is_revoked(world: World) -> None:
    shown = f"Bearer {world.secret}"
    assert await name_of(world.all, shown) == "User:orders"
    world.path.write_text("[]")
    assert world.files.look()
    assert "not good here (any more)" in await refusal(world.all, shown)


async def test_an_identity_holds_until_its_token_is_revoked_changed_or_ended(world: World) -> None:
    other = create_token(world.path, "orders")
    assert world.files.look()
    found = [
        await world.all.identify(shown, ADDRESS)
        for shown in (
            Credentials(f"Bearer {world.secret}"),
            Credentials(f"Bearer {other}"),
            Credentials(f"Bearer {signed()}"),
            Credentials("", PEM),
            Credentials(),
        )
    ]
    assert [world.all.holds(each) for each in found] == [True] * 5
    # Another group is another identity; the second token of the name stays as it is.
    text = world.path.read_text()
    world.path.write_text(text.replace("- team", "- others"))
    assert world.files.look()
    assert [world.all.holds(each) for each in found] == [False, True, True, True, True]
    world.path.write_text("[]")
    assert world.files.look()
    assert [world.all.holds(each) for each in found] == [False, False, True, True, True]
    world.clock.now_ms += 31 * 86_400_000
    assert [world.all.holds(each) for each in found] == [False, False, False, False, True]
    assert not world.bare().holds(found[0])


# -- what nobody checks ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("authorization", "setting"),
    [
        ("Bearer sct_x", "Set security.tokens.file"),
        (basic("orders", "x"), "Set security.tokens.file"),
        ("Bearer a.b.c", "Set security.oidc.issuer"),
        ("Negotiate abc", "Bearer TOKEN"),
        ("sct_raw-secret", "Bearer TOKEN"),
        (" ", "Bearer TOKEN"),
    ],
)
async def test_a_credential_that_nobody_checks_is_refused(
    world: World, authorization: str, setting: str
) -> None:
    message = await refusal(world.bare(), authorization)
    assert setting in message
    assert "remove the credentials from the client" in message


async def test_a_certificate_that_nobody_checks_is_refused(world: World) -> None:
    assert "tls.client.ca.file" in await refusal(world.bare(), "", PEM)


async def test_nobody_may_have_to_prove_to_be_somebody(world: World) -> None:
    assert "shows no credentials" in await refusal(world.bare(must_prove=True), "")
    on_socket = Authenticator(socket=SOCKET, must_prove=True)
    assert await name_of(on_socket, "") == "User:socket"


async def test_messages_fit_into_a_status(world: World) -> None:
    texts = [
        getattr(module, name)
        for name in ("_NO_TOKENS", "_NO_OIDC", "_NO_SCHEME", "_NO_CERTIFICATES", "_WRONG", "_ENDED")
    ]
    assert max(map(len, [*texts, module._NOBODY])) <= 500


async def test_no_secret_gets_into_a_message(world: World) -> None:
    secret = "sct_planted-secret"
    forms = [f"Bearer {secret}", basic("orders", secret), secret, f"Digest {secret}"]
    forms += [f"Bearer {secret}.{secret}.{secret}", f"Basic {secret}", f"{secret} {secret}"]
    for authenticator in (world.all, world.bare()):
        for form in forms:
            shown = Credentials(form)
            with pytest.raises(SharecoordError) as refused:
                await authenticator.identify(shown, ADDRESS)
            told = f"{refused.value!r} {refused.value.metadata} {shown!r} {refused.value.__cause__}"
            assert "planted" not in told
            assert form not in told


async def test_a_megabyte_is_refused_unread(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "base64", None)
    monkeypatch.setattr(module.Tokens, "find", None)
    for scheme in ("Bearer ", "Basic ", "Bearer a.b."):
        message = await refusal(world.all, scheme + "x" * (1 << 20))
        assert f"more than {AUTHORIZATION_CHARS_MAX} characters" in message


async def test_keys_that_are_away_are_no_fault_of_the_caller(world: World) -> None:
    away = Authenticator(oidc=oidc_of(FixedKeys()), sleep=world.clock.sleep)
    for _ in range(WAITING_MAX * 2):
        with pytest.raises(KeysUnavailableError):
            await away.identify(Credentials(f"Bearer {signed()}"), ADDRESS)
    assert world.clock.waits == []


# -- who waits ------------------------------------------------------------------------------------


async def test_a_thousand_bad_passwords_slow_their_sender_alone(world: World) -> None:
    gate = asyncio.Event()
    sleeping: list[float] = []

    async def sleep(seconds: float) -> None:
        sleeping.append(seconds)
        await gate.wait()

    authenticator = Authenticator(tokens=world.files, oidc=world.oidc, sleep=sleep)
    bad = [
        asyncio.create_task(authenticator.identify(Credentials(basic("orders", f"{i}")), ADDRESS))
        for i in range(1_000)
    ]
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert len(sleeping) == WAITING_MAX
    assert max(sleeping) == 2.0
    assert sum(each.done() for each in bad) == 1_000 - WAITING_MAX
    # Good credentials never wait: not those of others, and not behind the same address.
    for address in (OTHER, ADDRESS):
        for good in (basic("orders", world.secret), f"Bearer {signed(sub=address)}"):
            await authenticator.identify(Credentials(good), address)
    other = asyncio.create_task(authenticator.identify(Credentials("Basic x"), OTHER))
    await asyncio.sleep(0)
    assert sleeping[WAITING_MAX:] == [0.1]
    gate.set()
    ends = await asyncio.gather(*bad, other, return_exceptions=True)
    assert sum(type(each) is UnauthenticatedError for each in ends) == WAITING_MAX + 1
    assert sum(type(each) is LimitExceededError for each in ends) == 1_000 - WAITING_MAX


async def test_one_caller_after_the_other_waits_longer(world: World) -> None:
    for number in range(4):
        await refusal(world.all, basic("orders", f"guess {number}"))
    await name_of(world.all, f"Bearer {world.secret}")
    await refusal(world.all, "Bearer a.b.c")
    # A good credential in between, maybe somebody else's behind the same address, forgives nothing.
    assert world.clock.waits == [0.1, 0.2, 0.4, 0.8, 1.6]


# -- Unix sockets ---------------------------------------------------------------------------------


def test_the_mode_of_a_socket_tells_who_connects(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "socket"
    path.touch()
    monkeypatch.setattr(module.pwd, "getpwuid", lambda _: type("Row", (), {"pw_name": "anna"}))
    monkeypatch.setattr(module.grp, "getgrgid", lambda _: type("Row", (), {"gr_name": "staff"}))
    assert socket_identity(path, 0o600) == Identity(Principal("User:anna"), Mechanism.SOCKET)
    of_group = Identity(Principal("User:unix-group-staff"), Mechanism.SOCKET)
    assert socket_identity(path, 0o660) == of_group
    assert socket_identity(path, 0o666) is NOBODY


def test_who_has_no_name_has_a_number(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "socket"
    path.touch()

    def unknown(_: int) -> None:
        raise KeyError("no such row")

    monkeypatch.setattr(module.pwd, "getpwuid", unknown)
    monkeypatch.setattr(module.grp, "getgrgid", unknown)
    uid, gid = os.getuid(), path.stat().st_gid
    assert socket_identity(path, 0o600).principal.name == f"User:{uid}"
    assert socket_identity(path, 0o660).principal.name == f"User:unix-group-{gid}"


def test_an_authenticator_loads_no_cryptography_by_itself() -> None:
    program = (
        "import sys, sharecoord.security.authenticator\n"
        "print(*[name for name in ('jwt', 'cryptography') if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == []
