"""Settings that have their place already and that this release does not carry out yet.

They are refused by name: a setting that is accepted and ignored loses records one day.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from sharecoord.config.group import GROUP_SETTINGS
from sharecoord.errors import InvalidConfigError

NOT_YET: Final = ("share.retry.keep.payload",)


def refuse_unsupported(settings: Mapping[str, str]) -> None:
    """Refuses group settings (in canonical text) that ask for something that is not there.

    Raises:
        InvalidConfigError: Names the first one.
    """
    for name in NOT_YET:
        text, setting = settings.get(name), GROUP_SETTINGS.find(name)
        if text is not None and text != setting.render(setting.default):
            raise InvalidConfigError(
                f"{name}={text} is not supported by this release yet; leave it out",
                metadata={"key": name, "value": text},
            )
