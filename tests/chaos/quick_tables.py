"""moto's tables without what makes a thousand launches take minutes.

For each item of a transaction moto copies its whole table, value by value, to have what to go
back to. One copy is enough, and values are never changed in place, only replaced: it may share
them.
"""

from __future__ import annotations

import contextlib
import copy
from collections import defaultdict
from typing import TYPE_CHECKING, Any
from unittest import mock

from moto.dynamodb.models import DynamoDBBackend
from moto.dynamodb.models.dynamo_type import LimitedSizeDict
from moto.dynamodb.models.table import Table

from tests.tables import FLEET, REGION_SCORES, tables

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mypy_boto3_dynamodb import DynamoDBClient


@contextlib.contextmanager
def quick_tables() -> Iterator[DynamoDBClient]:
    """Make both tables, empty, for as long as the context lasts."""
    backups: dict[str, Any] = {}
    transact = DynamoDBBackend.transact_write_items

    def backup(table: Any, _: object) -> Any:  # noqa: ANN401 - moto's
        if table.name not in backups:
            backups[table.name] = _backup(table)
        return backups[table.name]

    def transact_anew(backend: Any, items: Any) -> None:  # noqa: ANN401 - moto's
        backups.clear()
        transact(backend, items)

    with (
        mock.patch.object(Table, "__deepcopy__", backup, create=True),
        mock.patch.object(DynamoDBBackend, "transact_write_items", transact_anew),
        tables(FLEET, REGION_SCORES) as client,
    ):
        yield client


def _backup(table: Any) -> Any:  # noqa: ANN401 - moto's
    same = copy.copy(table)
    same.items = defaultdict(dict)
    for partition, items in table.items.items():
        same.items[partition] = {key: _item(item) for key, item in items.items()}
    return same


def _item(item: Any) -> Any:  # noqa: ANN401 - moto's
    same = copy.copy(item)
    same.attrs = LimitedSizeDict.__new__(LimitedSizeDict)
    dict.update(same.attrs, item.attrs)
    return same
