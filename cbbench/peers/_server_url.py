"""The address of a server, as a user gives it."""

from __future__ import annotations

import ipaddress

import httpx2

from cbbench.errors import UserError

KEY_VARIABLE = "OPENAI_API_KEY"


def checked_url(url: str, flag: str) -> str:
    """Without a slash at its end. A URL that holds a password would end in records and messages."""
    if "@" in url:
        raise UserError(f"{flag}: no name or password in the URL; a key is read from {KEY_VARIABLE}")
    try:
        parsed = httpx2.URL(url)
        is_one = parsed.scheme in ("http", "https") and parsed.host and not {*url} & {*"?# "}
    except (httpx2.InvalidURL, ValueError):
        is_one = False
    if not is_one:
        raise UserError(f"{flag} {url}: should be a URL like http://localhost:8000/v1")
    return url.rstrip("/")


def is_this_machine(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
