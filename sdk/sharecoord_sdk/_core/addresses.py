"""Where secrets may go."""

from __future__ import annotations

import ipaddress
from urllib import parse


def url_problem(url: str) -> str:
    """Why tokens can not be asked for at an address; "" = they can."""
    try:
        parts = parse.urlsplit(url)
        host, _ = parts.hostname, parts.port
    except ValueError as error:
        return f"is no address ({error})"
    if parts.scheme not in ("http", "https") or not host:
        return "is no https://… address"
    if parts.username is not None:
        return "names a user: give client.id and client.secret instead"
    if parts.scheme == "http" and not _is_loopback(host):
        return "is http: the secret goes over https only, but to this machine; use https"
    return ""


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
