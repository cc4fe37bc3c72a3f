"""DynamoDB's transactions: why one was refused, and which are worth another try.

Launching imports this module: it must import neither boto3 nor Powertools.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from botocore.exceptions import ClientError
    from mypy_boto3_dynamodb import DynamoDBClient
    from mypy_boto3_dynamodb.type_defs import TransactWriteItemTypeDef

_TRIES: Final = 5
_PAUSE_S: Final = 0.02  # doubled each time
# Reasons that are gone when the same transaction is tried again.
_PASSING: Final = {"TransactionConflict", "ThrottlingError", "ProvisionedThroughputExceeded"}


def transact(client: DynamoDBClient, writes: Sequence[TransactWriteItemTypeDef]) -> None:
    """Write all or nothing, again if it met somebody else's write.

    writes: at most 100, and such that may be repeated. Raises botocore's errors.
    """
    for tries in range(1, _TRIES + 1):
        try:
            client.transact_write_items(TransactItems=writes)
        except client.exceptions.TransactionCanceledException as error:
            if tries == _TRIES or not may_pass(cancellation_reasons(error)):
                raise
            time.sleep(_PAUSE_S * 2 ** (tries - 1))
        else:
            return


def cancellation_reasons(error: ClientError) -> list[Any]:
    """Return why each item of a cancelled transaction was refused, in the order of the items."""
    reasons: Any = error.response.get("CancellationReasons", [])
    return list(reasons)


def may_pass(reasons: Iterable[Any]) -> bool:
    """Tell whether a transaction cancelled for these reasons may succeed when it is repeated."""
    codes = {reason.get("Code") for reason in reasons} - {"None", None}
    return bool(codes) and codes <= _PASSING
