"""Who calls: what API Gateway says of it in an event. Standard library only."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping


def account_id(event: Mapping[str, Any]) -> str:
    """Return the account whose credentials signed a call: whose launches and instances it sees.

    event: of a REST API. Where nobody checks signatures, the API's own account.
    """
    context = event["requestContext"]
    signed_by: str = (context.get("identity") or {}).get("accountId") or context["accountId"]
    return signed_by
