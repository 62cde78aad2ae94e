"""Reads the configuration dict of an admin client: the keys of a consumer's, no group needed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sharecoord_sdk._core.config import ConsumerConfig, read_arguments, read_config
from sharecoord_sdk._core.errors import KafkaException

from .errors import InvalidConfigError

_PREFIX = "Failed to create share consumer: "


def read_admin_config(arguments: tuple[Any, ...], keywords: Mapping[str, Any]) -> ConsumerConfig:
    """Reads what a constructor was called with.

    Args:
        arguments: One dict at the most.
        keywords: Keys that are added to the dict.

    Returns:
        The connection's settings; those of consuming have no meaning here.

    Raises:
        TypeError: Not a dict, or a callback that can not be called.
        InvalidConfigError: An unknown key or a bad value, by name.
    """
    given = read_arguments(arguments, keywords)
    try:
        return read_config(({"group.id": "admin"} | given,), {})
    except KafkaException as error:
        raise InvalidConfigError(error.args[0].str(), reason="INVALID_CONFIG") from None
    except ValueError as error:
        text = str(error).removeprefix(_PREFIX)
        raise InvalidConfigError(text, reason="INVALID_CONFIG") from None
