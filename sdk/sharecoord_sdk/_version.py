"""The version that the SDK shows to the coordinator."""

from __future__ import annotations

from typing import Final

__version__: Final = "0.1.0"
#: Version of the wire protocol that this SDK speaks (`Join.protocol_version`).
PROTOCOL_VERSION: Final = 1
