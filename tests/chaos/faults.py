"""Named points of a function's way, and what happens to it there.

A function passes a point before and after everything that leaves it: `before ask Commit`,
`after transact_write_items`. Each is passed in the function's own thread: what waits there keeps
the whole function waiting, as a process that is stopped.
"""

from __future__ import annotations

import itertools
import threading
from collections import defaultdict
from typing import TYPE_CHECKING, Any, Final

from botocore.exceptions import ClientError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from mypy_boto3_dynamodb import DynamoDBClient


class FunctionDied(BaseException):
    """Passes through everything that a function does about errors, as its death would."""


class Faults:
    """What happens to one function. passed: the points that it has passed, in order."""

    def __init__(self) -> None:
        self.passed: list[str] = []
        self.is_dead = False
        self._dies_at: int | None = None
        self._acts: dict[str, dict[int, Callable[[], None]]] = defaultdict(dict)
        self._times: defaultdict[str, Iterator[int]] = defaultdict(lambda: itertools.count(1))

    def die_at(self, number: int) -> None:
        """Die at the point of that number, from 0."""
        self._dies_at = number

    def at(self, point: str, act: Callable[[], None], *, times: tuple[int, ...] = (1,)) -> None:
        """Do that when a point is passed, the first time or those times."""
        self._acts[point].update(dict.fromkeys(times, act))

    def die(self) -> None:
        """End the function here. What of it still goes on comes no further than its next point."""
        self.is_dead = True
        raise FunctionDied

    def pass_point(self, point: str) -> None:
        """Note that a point is passed, and let happen what is to happen there."""
        if self.is_dead:
            raise FunctionDied
        self.passed.append(point)
        if len(self.passed) - 1 == self._dies_at:
            self.die()
        act = self._acts[point].get(next(self._times[point]))
        if act is not None:
            act()


class Freeze:
    """Keeps a function at a point until it is let go. Give `hold` to `Faults.at`."""

    def __init__(self) -> None:
        self.reached = threading.Event()
        self._may_go = threading.Event()

    def hold(self) -> None:
        self.reached.set()
        assert self._may_go.wait(timeout=60), "nobody let the function go on"

    def let_go(self) -> None:
        self._may_go.set()


def throttled() -> None:
    """Fail as DynamoDB does when botocore has tried often enough."""
    raise ClientError(
        {"Error": {"Code": "ThrottlingException", "Message": "Rate exceeded"}}, "TransactWriteItems"
    )


def conflicting() -> None:
    """Fail as a transaction does that meets another write to one of its items."""
    raise ClientError(
        {
            "Error": {"Code": "TransactionCanceledException", "Message": "Transaction cancelled"},
            "CancellationReasons": [{"Code": "TransactionConflict"}],
        },
        "TransactWriteItems",
    )


# moto's tables bear no two calls at a time.
_ONE_AT_A_TIME: Final = threading.RLock()


class FaultyTable:
    """A DynamoDB client whose calls are points. To be used as one."""

    def __init__(self, client: DynamoDBClient, faults: Faults) -> None:
        self._client = client
        self._faults = faults
        self.exceptions = client.exceptions

    def __getattr__(self, operation: str) -> Any:  # noqa: ANN401 - any of the client's
        call: Any = getattr(self._client, operation)

        def at_points(**request: Any) -> Any:  # noqa: ANN401 - as the client's
            return self._at_points(operation, lambda: call(**request))

        return at_points

    def get_paginator(self, operation: str) -> _FaultyPages:
        return _FaultyPages(self, operation)

    def pages(self, operation: str, request: dict[str, Any]) -> list[Any]:
        paginator: Any = self._client.get_paginator(operation)  # type: ignore[call-overload] # any
        pages: list[Any] = self._at_points(operation, lambda: list(paginator.paginate(**request)))
        return pages

    def _at_points(self, operation: str, call: Callable[[], Any]) -> Any:  # noqa: ANN401
        self._faults.pass_point(f"before {operation}")
        with _ONE_AT_A_TIME:
            answer = call()
        self._faults.pass_point(f"after {operation}")
        return answer


class _FaultyPages:
    def __init__(self, table: FaultyTable, operation: str) -> None:
        self._table = table
        self._operation = operation

    def paginate(self, **request: Any) -> list[Any]:  # noqa: ANN401 - as the client's
        return self._table.pages(self._operation, request)
