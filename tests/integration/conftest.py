"""A Kafka that can refuse: of the tests of topics that may not be seen, read or written."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from sharecoord.devenv.broker import KafkaBroker

AUTHORIZER = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    # Whoever does not log in is ANONYMOUS, and may do what no ACL is about.
    "allow.everyone.if.no.acl.found": "true",
}


@pytest.fixture(scope="package")
def broker_with_acls() -> Iterator[KafkaBroker]:
    """One for all files of this folder; a test may kill it, and starts it again."""
    with KafkaBroker(settings=AUTHORIZER) as broker:
        yield broker
