"""Records what an owner wishes for an instance, before its node is asked.

What stands in the record is repeated to the node until it is done, whoever asks next and however
long the node is away.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from collections.abc import Collection

    from fleetcast.messages import InstanceState
    from lambdas.records import InstanceRecord
    from lambdas.run_instances.services import Services


def wish_shut_down(
    services: Services,
    record: InstanceRecord,
    state: InstanceState,
    *,
    from_states: Collection[InstanceState],
) -> InstanceRecord:
    """Move an instance to `stopping` or `shutting-down`, whatever else happens to it meanwhile.

    from_states: it is left as it is in any other. Return the record as it is then.
    """
    while record.state in from_states:
        now_s = services.now_s()
        wished = msgspec.structs.replace(
            record,
            state=state,
            state_reason_code="Client.UserInitiatedShutdown",
            state_reason_message="Client.UserInitiatedShutdown: User initiated shutdown",
            shutdown_asked_at_s=now_s,
        )
        if services.fleet.change_state(record, wished):
            return wished
        current = services.fleet.instances_by_id(record.account_id, [record.instance_id])
        if not current:  # its launch was refused after all
            return msgspec.structs.replace(wished, state="terminated", terminated_at_s=now_s)
        record = current[0]
    return record
