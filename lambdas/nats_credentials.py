"""NATS credentials: the Secrets Manager secrets that the configuration names.

Launching imports this module: it must import neither boto3 nor Powertools.
"""

from __future__ import annotations

from functools import cache
from threading import Lock
from typing import TYPE_CHECKING, Any

from botocore.exceptions import BotoCoreError, ClientError

from lambdas.bus import CredentialsUnreadable

if TYPE_CHECKING:
    from collections.abc import Callable


def secret_reader(make_client: Callable[[], Any]) -> Callable[[str], str]:
    """Return what the bus reads a credentials secret with, by its name.

    make_client: makes a Secrets Manager client, boto3's or botocore's. It is called when the first
    secret is read: a fleet whose NATS asks for no credentials never pays for the client.
    """
    client_once = cache(make_client)
    making = Lock()  # no two threads may make a client of one session

    def read_secret(name: str) -> str:
        try:
            with making:
                client = client_once()
            secret: str = client.get_secret_value(SecretId=name)["SecretString"]
        except (BotoCoreError, ClientError, KeyError) as error:
            raise CredentialsUnreadable(f"secret {name} can't be read: {error!r}") from error
        return secret

    return read_secret
