"""The one error of this package: a part of the test environment is missing or did not come up."""

from __future__ import annotations

from sharecoord.errors import SharecoordError


class DevenvError(SharecoordError):
    """A broker, a mock cluster or a tool that they need is missing or failed; says what helps."""

    reason = "DEVENV"
