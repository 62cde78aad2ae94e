"""Brokers with share groups of their own, and coordinators in front of them."""

from __future__ import annotations

from tests.integration.conftest import coordinator as coordinator
