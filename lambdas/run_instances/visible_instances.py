"""Which instances a call sees: its account's, and at a region's own endpoint that region's.

The one place that decides it, for all actions. An instance that has no place yet is in no region.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fleetcast.errors import MissingParameter
from lambdas.run_instances.descriptions import check_instance_ids, chosen_records

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lambdas.records import InstanceRecord
    from lambdas.run_instances.services import Call, Services


def visible_instances(
    services: Services, call: Call, instance_ids: Sequence[str] = ()
) -> list[InstanceRecord]:
    """Read the instances that the call sees: all, or those of the named that are there.

    Raises InvalidInstanceID.Malformed.
    """
    check_instance_ids(instance_ids)
    records = (
        services.fleet.instances_by_id(call.account_id, instance_ids)
        if instance_ids
        else services.fleet.instances(call.account_id)
    )
    return [record for record in records if call.region in {None, record.region}]


def named_instances(
    services: Services, call: Call, instance_ids: Sequence[str]
) -> list[InstanceRecord]:
    """Read the named instances, each once, in the order of the names.

    Raises MissingParameter if there are none, and InvalidInstanceID.* if any of them is not one
    that the call sees.
    """
    if not instance_ids:
        raise MissingParameter("InstanceId")
    records = visible_instances(services, call, instance_ids)
    return chosen_records(records, instance_ids, now_s=services.now_s())
