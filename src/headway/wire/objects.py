"""Where whole outputs are kept when there is an object store: one object for each attempt (H9).

Agents write them and servers read them, both through obstore: a local folder (file:///...), or S3, Azure and Google stores by their URLs.
Credentials come from the environment, as obstore and the vendors' tools read them.
"""

from __future__ import annotations

from typing import Any

from headway.errors import ConfigError

# What a process that talks to an object store may inherit.
CREDENTIALS = (
    "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_REGION", "AWS_DEFAULT_REGION", "AWS_ENDPOINT",
    "AWS_ENDPOINT_URL", "AWS_ALLOW_HTTP", "AZURE_STORAGE_ACCOUNT_NAME", "AZURE_STORAGE_ACCOUNT_KEY", "GOOGLE_SERVICE_ACCOUNT",
)  # fmt: skip


def open_store(url: str) -> Any:
    """The store behind a URL."""
    try:
        from obstore.store import from_url
    except ImportError:
        raise ConfigError("output_store needs the package obstore", hint="pip install 'headway[objects]'") from None
    try:
        return from_url(url, mkdir=True) if url.startswith("file:") else from_url(url)
    except Exception as error:  # each kind of store has errors of its own
        raise ConfigError(f"output_store: {url!r} cannot be used: {error}", hint="file:///folder or s3://bucket/prefix") from error


def key_of(task: int, attempt: int) -> str:
    """The first digits of an id are its time: stores that split their keys by prefix like the last ones better."""
    return f"{task % 1000:03}/{task}/{attempt}.log"
