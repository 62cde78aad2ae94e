"""What this release does not carry out yet is refused by name."""

from __future__ import annotations

import pytest

from sharecoord.config.group import validate_group_overrides
from sharecoord.errors import InvalidConfigError
from sharecoord.runtime.supported import NOT_YET, refuse_unsupported

VALUES = {
    "errors.deadletterqueue.topic.name": "dlq.orders",
    "share.retry.keep.payload": "true",
}


@pytest.mark.parametrize("name", NOT_YET)
def test_a_setting_that_would_do_nothing_is_refused(name: str) -> None:
    checked = validate_group_overrides({name: VALUES[name]})
    with pytest.raises(InvalidConfigError, match=f"{name}=.* is not supported by this release"):
        refuse_unsupported(checked)


def test_defaults_and_everything_else_pass() -> None:
    refuse_unsupported(validate_group_overrides({"share.retry.keep.payload": "false"}))
    refuse_unsupported(validate_group_overrides({"share.delivery.count.limit": "7"}))
