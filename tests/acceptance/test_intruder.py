"""An intruder at a real coordinator: every call, every form of credentials, by those who may not.

The coordinator has TLS, tokens, JSON Web Tokens and rules. Each attempt gets exactly what the rules
say, the audit trail has a line for each refusal, and nothing of the group has changed at the end.
"""

from __future__ import annotations

import base64
import hashlib
import json
import sys
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple

import grpc
import jwt
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from google.protobuf.message import Message
from kio.index import load_request_schema
from kio.schema.describe_share_group_offsets.v1.request import (
    DescribeShareGroupOffsetsRequestGroup as OffsetsGroup,
)
from kio.schema.metadata.v12.request import MetadataRequestTopic

from sharecoord.api.kafka import codec
from sharecoord.devenv.coordinator import CoordinatorProcess
from sharecoord.devenv.processes import free_ports
from sharecoord.devenv.topics import Topics
from sharecoord.security.scram import HASHES, make_verifier
from sharecoord.security.slowdown import WAITING_MAX
from sharecoord.wire import admin_service_pb2 as admin
from sharecoord.wire import share_service_pb2 as share
from sharecoord.wire import share_types_pb2 as types
from tests.certificates import Authority
from tests.kafka_door import KafkaDoor
from tests.support import KafkaUnderTest, eventually, unique_name

DENIED, UNKNOWN = grpc.StatusCode.PERMISSION_DENIED, grpc.StatusCode.UNAUTHENTICATED
DENIAL = "AUTHORIZATION_FAILED"
SHARE, ADMIN = "/sharecoord.v1.ShareService/", "/sharecoord.v1.AdminService/"
ISSUER, AUDIENCE = "https://issuer.test", "sharecoord"
GROUP, OTHERS = "mine", "others"
DEADLINE_S = 30
RULES = """
rules:
  - allow: [consume]
    principals: ["User:worker"]
    resources: ["group:mine", "topic:TOPIC"]
  - allow: ["*"]
    principals: ["User:operator"]
    resources: ["*"]
  - allow: [consume]
    principals: ["User:worker-of-others", "User:jay"]
    resources: ["group:others", "topic:TOPIC"]
  - allow: ["*"]
    principals: ["User:operator-of-others"]
    resources: ["group:others*", "topic:*", "dead-letter-topic:*", "consumer-group:*"]
"""
TOKENS = ("worker", "operator", "worker-of-others", "operator-of-others", "stranger")


class Keys(NamedTuple):
    """Keys of the identity provider."""

    private: rsa.RSAPrivateKey
    public_pem: bytes

    def token(self, *, algorithm: str = "RS256", key: Any = None, **claims: Any) -> str:
        """A token of `jay`, good unless these claims are against it."""
        said = {
            "iss": ISSUER,
            "aud": AUDIENCE,
            "sub": "jay",
            "iat": time.time() - 10,
            "exp": time.time() + 600,
            **claims,
        }
        headers = {"kid": claims.pop("kid", "k1")} if "kid" in claims else {"kid": "k1"}
        said.pop("kid", None)
        return jwt.encode(said, self.private if key is None else key, algorithm, headers)


class Place(NamedTuple):
    """A coordinator with a group in it."""

    process: CoordinatorProcess
    channel: grpc.Channel
    trail: Path
    topic: str
    keys: Keys
    member_epoch: int
    kafka_port: int
    authority: Path

    def kafka(self) -> KafkaDoor:
        """A connection to the Kafka port."""
        return KafkaDoor(self.kafka_port, self.authority)

    def ask(self, method: str, request: Message, shown: str | None) -> tuple[Any, Any]:
        """Status and answer of a call; `shown` is what the caller brings along."""
        answer_type: Any = _answer_type(method)
        call = self.channel.unary_unary(
            method,
            request_serializer=lambda message: message.SerializeToString(),
            response_deserializer=answer_type.FromString,
        )
        metadata = () if shown is None else (("authorization", shown),)
        try:
            return grpc.StatusCode.OK, call(request, metadata=metadata, timeout=DEADLINE_S)
        except grpc.RpcError as raised:
            error: Any = raised
            return error.code(), error.details()

    def consume(self, group: str, shown: str | None) -> tuple[Any, Any]:
        """As `ask`, of a stream that joins a group with the member id of the worker."""
        join = share.Join(
            group_id=group, member_id="victim", topics=[self.topic], protocol_version=1
        )
        metadata = () if shown is None else (("authorization", shown),)
        stream = self.channel.stream_stream(
            SHARE + "Consume",
            request_serializer=share.ConsumeRequest.SerializeToString,
            response_deserializer=share.ConsumeResponse.FromString,
        )(iter([share.ConsumeRequest(join=join)]), metadata=metadata, timeout=DEADLINE_S)
        try:
            return grpc.StatusCode.OK, next(stream)
        except grpc.RpcError as raised:
            error: Any = raised
            return error.code(), error.details()

    def refusals(self, reason: str) -> int:
        """How many refusals for this reason the trail has."""
        lines = map(json.loads, self.trail.read_text().splitlines())
        return sum((line["outcome"], line.get("reason")) == ("refused", reason) for line in lines)


def _answer_type(method: str) -> Any:
    module: Any = share if method.startswith(SHARE) else admin
    service = module.DESCRIPTOR.services_by_name[method.split("/")[1].rpartition(".")[2]]
    found = service.methods_by_name[method.rpartition("/")[2]].output_type.name
    return getattr(module, found)


def secret_of(name: str) -> str:
    return f"sct_{name}-{'x' * 40}"


def bearer(name: str) -> str:
    return f"Bearer {secret_of(name)}"


def basic(user: str, password: str) -> str:
    return "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()


def _keys(folder: Path) -> Keys:
    private = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    public = private.public_key()
    entry = json.loads(jwt.algorithms.RSAAlgorithm.to_jwk(public))
    (folder / "jwks.json").write_text(
        json.dumps({"keys": [{**entry, "kid": "k1", "use": "sig", "alg": "RS256"}]})
    )
    pem = public.public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    return Keys(private, pem)


def _settings(folder: Path, topic: str) -> dict[str, object]:
    pair = Authority(folder).issue("coordinator")
    (folder / "rules.yaml").write_text(RULES.replace("TOPIC", topic))
    entries = [
        f"- name: {name}\n  sha256: {hashlib.sha256(secret_of(name).encode()).hexdigest()}\n"
        "  scram:\n"
        + "".join(f"  - {make_verifier(each, secret_of(name), b'salt')}\n" for each in HASHES)
        for name in TOKENS
    ]
    past = hashlib.sha256(secret_of("past").encode()).hexdigest()
    entries.append(f"- name: past\n  sha256: {past}\n  expires: 2020-01-01\n")
    (folder / "tokens.yaml").write_text("".join(entries))
    return {
        "tls.cert.file": str(pair.certificate),
        "tls.key.file": str(pair.key),
        "security.tokens.file": str(folder / "tokens.yaml"),
        "security.rules.file": str(folder / "rules.yaml"),
        "security.oidc.issuer": ISSUER,
        "security.oidc.audience": AUDIENCE,
        "security.oidc.jwks": str(folder / "jwks.json"),
        "security.audit.sink": f"file:{folder / 'audit.jsonl'}",
        # The member stays for all tests, though it says nothing.
        "group.share.session.timeout.ms": 3_600_000,
        "kafka.port.listen": f"localhost:{free_ports(1)[0]}",
    }


@pytest.fixture(scope="module")
def place(
    kafka_broker: KafkaUnderTest, topics: Topics, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Place]:
    folder = tmp_path_factory.mktemp("intruder")
    topic = unique_name("t")
    topics.create(topic, partitions=1)
    topics.produce(topic, 20)
    keys = _keys(folder)
    settings = _settings(folder, topic)
    authority = folder / "ca" / "ca.pem"
    kafka_port = int(str(settings["kafka.port.listen"]).rpartition(":")[2])
    with CoordinatorProcess(kafka_broker.bootstrap_servers, folder, settings=settings) as process:
        port = process.address.rpartition(":")[2]
        credentials = grpc.ssl_channel_credentials(authority.read_bytes())
        with grpc.secure_channel(f"localhost:{port}", credentials) as channel:
            trail = folder / "audit.jsonl"
            made = Place(process, channel, trail, topic, keys, 0, kafka_port, authority)
            join = share.Join(
                group_id=GROUP, member_id="victim", topics=[topic], protocol_version=1
            )
            code, joined = made.ask(SHARE + "Join", share.JoinRequest(join=join), bearer("worker"))
            assert code is grpc.StatusCode.OK, joined
            yield made._replace(member_epoch=joined.joined.member_epoch)
    topics.delete(topic)


# -- every call, by everybody who may not ---------------------------------------------------------


def requests(place: Place, group: str) -> dict[str, Message]:
    """A request of each call about a group, which would do something if it were allowed."""
    target = admin.OffsetTarget(topic=place.topic)
    partition = types.TopicPartition(topic=place.topic, partition=0)
    ids = {"group_id": group, "member_id": "victim", "member_epoch": place.member_epoch}
    join = share.Join(group_id=group, member_id="victim", topics=[place.topic], protocol_version=1)
    accepts = share.AcknowledgeRequest(group_id=group, member_id="victim")
    return {
        SHARE + "Join": share.JoinRequest(join=join),
        SHARE + "Fetch": share.FetchRequest(**ids, request_id=1),
        SHARE + "Heartbeat": share.HeartbeatRequest(**ids),
        SHARE + "Acknowledge": accepts,
        SHARE + "Leave": share.LeaveRequest(**ids),
        ADMIN + "ListGroups": admin.ListGroupsRequest(),
        ADMIN + "DescribeGroups": admin.DescribeGroupsRequest(group_ids=[group]),
        ADMIN + "DescribeGroupConfigs": admin.DescribeGroupConfigsRequest(group_id=group),
        ADMIN + "AlterGroupConfigs": admin.AlterGroupConfigsRequest(
            group_id=group, set={"share.delivery.count.limit": "9"}
        ),
        ADMIN + "ResetOffsets": admin.ResetOffsetsRequest(
            group_id=group, topics=[target], to_latest=True, force=True
        ),
        ADMIN + "DeleteOffsets": admin.DeleteOffsetsRequest(group_id=group, topics=[place.topic]),
        ADMIN + "DeleteGroups": admin.DeleteGroupsRequest(group_ids=[group]),
        ADMIN + "PauseGroup": admin.PauseGroupRequest(group_id=group),
        ADMIN + "ResumeGroup": admin.ResumeGroupRequest(group_id=group),
        ADMIN + "ForceRecords": admin.ForceRecordsRequest(
            group_id=group,
            partition=partition,
            first_offset=0,
            last_offset=5,
            action=admin.FORCE_ACTION_SKIP,
        ),
        ADMIN + "ListInFlight": admin.ListInFlightRequest(group_id=group, partition=partition),
        ADMIN + "Replay": admin.ReplayRequest(
            group_id=group, into_group_id=f"{group}-loot", topics=[target], duration_ms=3_600_000
        ),
        ADMIN + "ListDeadLetters": admin.ListDeadLettersRequest(group_id=group),
        ADMIN + "ShowDeadLetter": admin.ShowDeadLetterRequest(group_id=group, id="x"),
        ADMIN + "RedriveDeadLetters": admin.RedriveDeadLettersRequest(group_id=group, all=True),
        ADMIN + "DiscardDeadLetters": admin.DiscardDeadLettersRequest(group_id=group, all=True),
        ADMIN + "WithdrawRedrive": admin.WithdrawRedriveRequest(group_id=group),
        ADMIN + "BlockKeys": admin.BlockKeysRequest(group_id=group, keys=[b"k"]),
        ADMIN + "UnblockKeys": admin.UnblockKeysRequest(group_id=group, keys=[b"k"]),
        ADMIN + "ListBlockedKeys": admin.ListBlockedKeysRequest(group_id=group),
        ADMIN + "ImportOffsets": admin.ImportOffsetsRequest(
            group_id=group, from_consumer_group="c", force=True
        ),
        ADMIN + "ExportOffsets": admin.ExportOffsetsRequest(
            group_id=group, to_consumer_group="c", force=True
        ),
        ADMIN + "DescribeCoordinator": admin.DescribeCoordinatorRequest(),
        ADMIN + "DescribeAccess": admin.DescribeAccessRequest(
            principal="User:worker", action="consume", resource="group:mine"
        ),
    }


def test_every_call_is_tried(place: Place) -> None:
    tried = {method.rpartition("/")[2] for method in requests(place, GROUP)} | {"Consume"}
    services: Any = (
        share.DESCRIPTOR.services_by_name["ShareService"],
        admin.DESCRIPTOR.services_by_name["AdminService"],
    )
    assert tried == {method.name for service in services for method in service.methods}


INTRUDERS = {
    "nobody": None,
    "a stranger": bearer("stranger"),
    "a worker of another group": bearer("worker-of-others"),
    "an operator of another group": bearer("operator-of-others"),
    "a user of the identity provider": "JWT",
}


@pytest.mark.parametrize("who", INTRUDERS)
def test_an_intruder_gets_nothing_of_a_group(place: Place, who: str) -> None:
    shown = INTRUDERS[who]
    if shown == "JWT":
        shown = f"Bearer {place.keys.token()}"
    state_before = _state(place)
    refused_before, expected = place.refusals(DENIAL), 0
    for method, request in requests(place, GROUP).items():
        code, answer = place.ask(method, request, shown)
        name = method.rpartition("/")[2]
        if name == "ListGroups":
            assert code is grpc.StatusCode.OK, answer
            assert GROUP not in [each.group_id for each in answer.groups]
            continue
        expected += 1
        if name in ("DescribeGroups", "DeleteGroups"):
            assert code is grpc.StatusCode.OK, answer
            assert [each.error_reason for each in answer.groups] == ["AUTHORIZATION_FAILED"]
        else:
            assert code is DENIED, (method, code, answer)
            assert "may not" in answer or "another principal's" in answer, (method, answer)
    code, answer = place.consume(GROUP, shown)
    assert code is DENIED, answer
    eventually(lambda: place.refusals(DENIAL) >= refused_before + expected + 1, DEADLINE_S)
    assert place.refusals(DENIAL) == refused_before + expected + 1
    assert _state(place) == state_before


def _state(place: Place) -> bytes:
    """All that an operator sees of the group."""
    seen = b""
    for method in ("DescribeGroups", "DescribeGroupConfigs", "ListBlockedKeys"):
        code, answer = place.ask(
            ADMIN + method, requests(place, GROUP)[ADMIN + method], bearer("operator")
        )
        assert code is grpc.StatusCode.OK, answer
        seen += answer.SerializeToString(deterministic=True)
    return seen


def test_the_fleets_own_protocol_is_not_spoken_here(place: Place) -> None:
    stream = place.channel.stream_stream("/sharecoord.peer.v1.PeerService/Link")
    call: Any = stream(iter([b""]), metadata=(("authorization", bearer("operator")),), timeout=5)
    with pytest.raises(grpc.RpcError):
        next(call)
    assert call.code() is grpc.StatusCode.UNIMPLEMENTED


def test_who_may_is_let_in(place: Place) -> None:
    """The same calls about their own group: no line of the rules is against them."""
    for name, prefix in (("worker-of-others", SHARE), ("operator-of-others", ADMIN)):
        for method, request in requests(place, OTHERS).items():
            if not method.startswith(prefix) or method.endswith(("Coordinator", "Access")):
                continue
            code, answer = place.ask(method, request, bearer(name))
            # Acknowledging in a member's name is not what a worker may do.
            wanted = method.endswith("Acknowledge")
            assert (code is DENIED) == wanted, (method, code, answer)
            assert code is not UNKNOWN, (method, answer)


# -- every form of credentials --------------------------------------------------------------------


def bad_credentials(keys: Keys) -> dict[str, str]:
    """What callers bring who are nobody."""
    now = time.time()
    unsigned = keys.token(algorithm="none", key="")
    by_public_key = _hs256(keys)
    return {
        "a wrong token": "Bearer sct_wrong",
        "no token": "Bearer ",
        "a token that has expired": bearer("past"),
        "the sum of a token": f"Bearer {hashlib.sha256(secret_of('worker').encode()).hexdigest()}",
        "another user's token": basic("operator", secret_of("worker")),
        "a wrong password": basic("operator", "secret"),
        "no password": basic("operator", ""),
        "a user in capitals": basic("Operator", secret_of("operator")),
        "a user with a space": basic("operator ", secret_of("operator")),
        "no base64": "Basic %%%",
        "a scheme of its own": "Digest username=operator",
        "a scheme alone": "Bearer",
        "another word": "operator",
        "an expired JWT": f"Bearer {keys.token(exp=now - 3_600)}",
        "a JWT of tomorrow": f"Bearer {keys.token(nbf=now + 86_400)}",
        "a JWT without end": f"Bearer {_without_end(keys)}",
        "another audience": f"Bearer {keys.token(aud='shop')}",
        "another issuer": f"Bearer {keys.token(iss='https://evil.test')}",
        "a key that is not there": f"Bearer {keys.token(kid='k9')}",
        "an unsigned JWT": f"Bearer {unsigned}",
        "HS256 by the public key": f"Bearer {by_public_key}",
        "a JWT cut short": f"Bearer {keys.token()[:-4]}",
        "a JWT of a stranger's key": f"Bearer {_foreign(keys)}",
        "three dots": "Bearer a.b.c",
    }


def _hs256(keys: Keys) -> str:
    """Signed with the public key as if it were a shared secret."""

    def part(content: object) -> bytes:
        return base64.urlsafe_b64encode(json.dumps(content).encode()).rstrip(b"=")

    import hmac

    claims = {"iss": ISSUER, "aud": AUDIENCE, "sub": "jay", "exp": int(time.time()) + 600}
    signed = part({"alg": "HS256", "kid": "k1", "typ": "JWT"}) + b"." + part(claims)
    digest = hmac.new(keys.public_pem, signed, hashlib.sha256).digest()
    return (signed + b"." + base64.urlsafe_b64encode(digest).rstrip(b"=")).decode()


def _without_end(keys: Keys) -> str:
    claims = {"iss": ISSUER, "aud": AUDIENCE, "sub": "jay"}
    return jwt.encode(claims, keys.private, "RS256", {"kid": "k1"})


def _foreign(keys: Keys) -> str:
    return keys.token(key=rsa.generate_private_key(public_exponent=65537, key_size=2048))


def test_no_bad_credential_gets_anybody_in(place: Place) -> None:
    refused_before = place.refusals("UNAUTHENTICATED")
    tried = bad_credentials(place.keys)
    for what, shown in tried.items():
        code, answer = place.ask(ADMIN + "ListGroups", admin.ListGroupsRequest(), shown)
        assert code is UNKNOWN, (what, code, answer)
        assert shown not in str(answer)
    eventually(lambda: place.refusals("UNAUTHENTICATED") >= refused_before + len(tried), DEADLINE_S)
    good = f"Bearer {place.keys.token()}"
    assert place.ask(ADMIN + "ListGroups", admin.ListGroupsRequest(), good)[0] is (
        grpc.StatusCode.OK
    )


# -- the Kafka port -------------------------------------------------------------------------------

GROUP_DENIED, TOPIC_DENIED, SASL_FAILED = 30, 29, 58


def kafka_requests(place: Place, group: str) -> list[tuple[int, int, dict[str, Any], int]]:
    """Requests about a group: API, version, values, and the code for who may do nothing with it."""
    member = {"group_id": group, "member_id": "victim"}
    beat = {**member, "subscribed_topic_names": (place.topic,)}
    topics = {"topics": (), "is_renew_ack": False}
    fetch = {
        **member,
        **topics,
        "max_wait": timedelta(milliseconds=1),
        "min_bytes": 1,
        "max_bytes": 1 << 20,
        "max_records": 10,
        "batch_size": 10,
        "share_acquire_mode": 0,
        "forgotten_topics_data": (),
    }
    return [
        *((76, 1, {**beat, "member_epoch": epoch}, GROUP_DENIED) for epoch in (0, 1, -1)),
        *((78, 2, {**fetch, "share_session_epoch": epoch}, GROUP_DENIED) for epoch in (0, 1, -1)),
        *(
            (79, 2, {**member, **topics, "share_session_epoch": epoch}, GROUP_DENIED)
            for epoch in (1, -1)
        ),
        (32, 4, _configs(32, 4, group), GROUP_DENIED),
        (44, 1, _configs(44, 1, group), GROUP_DENIED),
        (91, 0, _offsets(91, group, place.topic), GROUP_DENIED),
        (92, 0, _offsets(92, group, place.topic), GROUP_DENIED),
        (10, 4, {"key_type": 0, "coordinator_keys": (group,)}, GROUP_DENIED),
        (77, 1, {"group_ids": (group,), "include_authorized_operations": False}, GROUP_DENIED),
        (90, 1, {"groups": (OffsetsGroup(group_id=group, topics=None),)}, GROUP_DENIED),
        (42, 2, {"groups_names": (group,)}, GROUP_DENIED),
    ]


ABOUT_TOPICS = {2, 3, 75}
"""They answer who may see the topic."""

OPEN_TO_ALL = {0, 1, 15, 16, 17, 18, 36, 60, 74}
"""Lists have what may be seen, the others nothing of a group: Produce and Fetch have an error for
everybody, and a group of Kafka's first protocol is always dead here."""


def _named(api_key: int, version: int, kind: str, /, **values: Any) -> Any:
    """A part of a request."""
    module = sys.modules[load_request_schema(api_key, version).__module__]
    return getattr(module, kind)(**values)


def _configs(api_key: int, version: int, group: str) -> dict[str, Any]:
    of = {"resource_type": 32, "resource_name": group}
    if api_key == 32:
        one = _named(32, version, "DescribeConfigsResource", **of, configuration_keys=None)
        return {"resources": (one,), "include_synonyms": True, "include_documentation": True}
    change = {"name": "share.delivery.count.limit", "config_operation": 0, "value": "9"}
    changed = (_named(44, version, "AlterableConfig", **change),)
    one = _named(44, version, "AlterConfigsResource", **of, configs=changed)
    return {"resources": (one,), "validate_only": False}


def _offsets(api_key: int, group: str, topic: str) -> dict[str, Any]:
    if api_key == 92:
        one = _named(92, 0, "DeleteShareGroupOffsetsRequestTopic", topic_name=topic)
        return {"group_id": group, "topics": (one,)}
    part = _named(
        91, 0, "AlterShareGroupOffsetsRequestPartition", partition_index=0, start_offset=0
    )
    one = _named(91, 0, "AlterShareGroupOffsetsRequestTopic", topic_name=topic, partitions=(part,))
    return {"group_id": group, "topics": (one,)}


def topic_codes(place: Place, door: KafkaDoor) -> set[int]:
    """What is answered about the topic, by each API that tells of topics."""
    name = place.topic
    meta = door.ask(
        3,
        12,
        topics=(MetadataRequestTopic(topic_id=None, name=name),),
        allow_auto_topic_creation=False,
        include_topic_authorized_operations=False,
    )
    pages = door.ask(
        75,
        0,
        topics=(_named(75, 0, "TopicRequest", name=name),),
        response_partition_limit=10,
        cursor=None,
    )
    part = {"partition_index": 0, "current_leader_epoch": -1, "timestamp": -1}
    parts = (_named(2, 7, "ListOffsetsPartition", **part),)
    asked = (_named(2, 7, "ListOffsetsTopic", name=name, partitions=parts),)
    ends = door.ask(2, 7, replica_id=-1, isolation_level=0, topics=asked)
    if meta.topics[0].error_code.value:
        assert not meta.topics[0].partitions
        assert meta.topics[0].topic_id is None
    found = [meta.topics[0], pages.topics[0], ends.topics[0].partitions[0]]
    return {each.error_code.value for each in found}


def test_every_api_of_the_kafka_port_is_tried(place: Place) -> None:
    tried = {each[0] for each in kafka_requests(place, GROUP)}
    assert tried | ABOUT_TOPICS | OPEN_TO_ALL == codec.VERSIONS.keys()


def code_of(answer: Any) -> int:
    """The code of an answer about one group."""
    for name in ("coordinators", "groups", "results", "responses"):
        if hasattr(answer, "error_code"):
            break
        for each in getattr(answer, name, ()):
            return int(each.error_code.value)
    return int(answer.error_code.value)


def forms_of(who: str, place: Place) -> list[tuple[str, str, str]]:
    """Mechanisms, names and secrets by which an intruder gets in at the Kafka port."""
    if who == "a user of the identity provider":
        return [("OAUTHBEARER", "jay", place.keys.token())]
    shown = INTRUDERS[who]
    if shown is None:
        return []
    name = who.removeprefix("a ").removeprefix("an ").replace(" of another group", "-of-others")
    assert shown == bearer(name)
    return [(mechanism, name, secret_of(name)) for mechanism in ("PLAIN", *HASHES)]


@pytest.mark.parametrize("who", INTRUDERS)
def test_an_intruder_gets_nothing_of_a_group_over_kafka(place: Place, who: str) -> None:
    state_before, refused_before, refused = _state(place), place.refusals(DENIAL), 0
    for mechanism, name, secret in forms_of(who, place) or [("", "", "")]:
        with place.kafka() as door:
            if mechanism:
                assert door.log_in(mechanism, name, secret) == (0, "")
            for api_key, version, values, wanted in kafka_requests(place, GROUP):
                answer = door.ask(api_key, version, **values)
                assert code_of(answer) == wanted, (api_key, values, answer)
                refused += 1
            listed = door.ask(16, 5, states_filter=(), types_filter=())
            assert GROUP not in [each.group_id for each in listed.groups]
            resources = door.ask(74, 1, resource_types=(32,)).config_resources
            assert GROUP not in [each.resource_name for each in resources]
            may_see = name not in ("", "stranger")
            assert topic_codes(place, door) == ({0} if may_see else {TOPIC_DENIED})
    eventually(lambda: place.refusals(DENIAL) >= refused_before + refused, DEADLINE_S)
    assert place.refusals(DENIAL) == refused_before + refused
    assert _state(place) == state_before


def test_who_may_is_let_in_over_kafka(place: Place) -> None:
    """The same door by each form, of somebody who may be a member of the group."""
    for mechanism in ("PLAIN", *HASHES):
        with place.kafka() as door:
            assert door.log_in(mechanism, "worker", secret_of("worker")) == (0, "")
            found = door.ask(10, 4, key_type=0, coordinator_keys=(GROUP,))
            assert code_of(found) == 0


def test_no_bad_credential_gets_anybody_in_over_kafka(place: Place) -> None:
    refused_before, bad = place.refusals("UNAUTHENTICATED"), bad_proofs(place.keys)

    def is_refused(what: str) -> bool:
        with place.kafka() as door:
            code, message = door.log_in(*bad[what])
            assert code == SASL_FAILED, (what, code, message)
            assert not bad[what][2] or bad[what][2] not in message
            with pytest.raises(ConnectionError):
                door.ask(16, 5, states_filter=(), types_filter=())
        return True

    # Beside each other: each waits for its refusal.
    with ThreadPoolExecutor(WAITING_MAX // 2) as threads:
        assert all(threads.map(is_refused, bad))
    eventually(lambda: place.refusals("UNAUTHENTICATED") >= refused_before + len(bad), DEADLINE_S)
    with place.kafka() as door:
        assert door.log_in("OAUTHBEARER", "jay", place.keys.token()) == (0, "")


def bad_proofs(keys: Keys) -> dict[str, tuple[str, str, str]]:
    """Mechanisms, names and secrets of callers who are nobody."""
    found = {
        "a wrong password": ("PLAIN", "operator", "guess"),
        "no password": ("PLAIN", "operator", ""),
        "no name": ("PLAIN", "", secret_of("operator")),
        "another user's token": ("PLAIN", "operator", secret_of("worker")),
        "a user in capitals": ("PLAIN", "Operator", secret_of("operator")),
        "a token that has expired": ("PLAIN", "past", secret_of("past")),
        "a JWT as a password": ("PLAIN", "jay", keys.token()),
    }
    for each in HASHES:
        found[f"{each}, a wrong password"] = (each, "operator", "guess")
        found[f"{each}, another user's token"] = (each, "operator", secret_of("worker"))
        found[f"{each}, nobody"] = (each, "nobody", secret_of("worker"))
        found[f"{each}, without an entry for it"] = (each, "past", secret_of("past"))
    for what, shown in bad_credentials(keys).items():
        if "JWT" in what or what in (
            "another audience",
            "another issuer",
            "a key that is not there",
        ):
            found[what] = ("OAUTHBEARER", "", shown.removeprefix("Bearer "))
    return found


def test_a_token_of_a_megabyte_is_not_read(place: Place) -> None:
    shown = "Bearer " + "x" * (1 << 20)
    code, _ = place.ask(ADMIN + "ListGroups", admin.ListGroupsRequest(), shown)
    assert code in (UNKNOWN, grpc.StatusCode.RESOURCE_EXHAUSTED)
    code, _ = place.ask(ADMIN + "ListGroups", admin.ListGroupsRequest(), bearer("operator"))
    assert code is grpc.StatusCode.OK


def test_a_thousand_bad_passwords_at_a_time_hold_nobody_up(place: Place) -> None:
    """Those who wait for their refusal are few; a good token of the same address never waits."""
    call = place.channel.unary_unary(
        ADMIN + "ListGroups",
        request_serializer=lambda message: message.SerializeToString(),
        response_deserializer=admin.ListGroupsResponse.FromString,
    )
    shown = (("authorization", basic("operator", "guess")),)
    guesses: Any = [
        call.future(admin.ListGroupsRequest(), metadata=shown, timeout=DEADLINE_S)
        for _ in range(1_000)
    ]
    code, answer = place.ask(ADMIN + "ListGroups", admin.ListGroupsRequest(), bearer("operator"))
    assert code is grpc.StatusCode.OK, answer
    found = Counter(guess.code() for guess in guesses)
    assert set(found) <= {UNKNOWN, grpc.StatusCode.RESOURCE_EXHAUSTED}
    assert found[grpc.StatusCode.RESOURCE_EXHAUSTED] > 900


def test_no_secret_is_in_the_trail_or_the_log(place: Place) -> None:
    written = place.trail.read_text() + (place.trail.parent / "coordinator.log").read_text()
    for secret in ("sct_", place.keys.token().split(".")[0]):
        assert secret not in written
