"""What the instance actions answer, from instance records to EC2's result shapes.

The shapes are those of EC2's API reference; ec2_protocol writes them as XML. Pure.
"""

from __future__ import annotations

import base64
import re
from collections import defaultdict
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final, TypeAlias

import msgspec

from fleetcast.errors import (
    InvalidInstanceIDMalformed,
    InvalidInstanceIDNotFound,
    InvalidParameterCombination,
    InvalidParameterValue,
)
from lambdas.records import STATE_CODES, TERMINATED_VISIBLE_S
from lambdas.run_instances.filters import Filter, filter_test
from lambdas.run_instances.instance_filters import instance_property

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from fleetcast.messages import InstanceState
    from lambdas.records import InstanceRecord

MIN_PAGE_INSTANCES: Final = 5
MAX_PAGE_INSTANCES: Final = 1_000

_INSTANCE_ID: Final = re.compile(r"i-(?:[0-9a-f]{8}|[0-9a-f]{17})")

Result: TypeAlias = dict[str, object]
# The order of a listing: later launches come last, so that a page never skips an instance.
_Position: TypeAlias = tuple[float, str, int, str]


class _DescribeParameters(msgspec.Struct, frozen=True, rename="pascal"):
    instance_ids: tuple[str, ...] = ()
    filters: tuple[Filter, ...] = ()
    max_results: int | None = None
    next_token: str | None = None


def reservation_result(records: Iterable[InstanceRecord]) -> Result:
    """Return RunInstances' answer: the instances of one reservation, at least one."""
    return _reservation(sorted(records, key=_position))


def describe_result(
    records: Iterable[InstanceRecord],
    parameters: Mapping[str, object],
    *,
    now_s: float,
) -> Result:
    """Return DescribeInstances' answer out of all records of an account.

    parameters: as ec2_protocol decodes them. now_s: epoch seconds; what has been terminated for
    an hour is no longer there. Raises InvalidInstanceID.*, InvalidParameterValue and
    InvalidParameterCombination.
    """
    asked = msgspec.convert(parameters, _DescribeParameters)
    page_instances = _page_instances(asked)
    passes = filter_test(asked.filters, instance_property)
    if asked.instance_ids:
        chosen = chosen_records(records, asked.instance_ids, now_s=now_s)
    else:
        chosen = [record for record in records if is_visible(record, now_s=now_s)]
    chosen = sorted(filter(passes, chosen), key=_position)
    if asked.next_token is not None:
        after = _position_of_token(asked.next_token)
        chosen = [record for record in chosen if _position(record) > after]
    page = chosen[:page_instances]
    by_reservation: defaultdict[str, list[InstanceRecord]] = defaultdict(list)
    for record in page:
        by_reservation[record.reservation_id].append(record)
    return {
        "Reservations": [_reservation(group) for group in by_reservation.values()],
        "NextToken": _token(page[-1]) if len(chosen) > len(page) else None,
    }


def start_result(changes: Iterable[tuple[InstanceRecord, InstanceRecord]]) -> Result:
    """Return StartInstances' answer from each instance's record before and after."""
    return {"StartingInstances": _state_changes(changes)}


def stop_result(changes: Iterable[tuple[InstanceRecord, InstanceRecord]]) -> Result:
    """Return StopInstances' answer from each instance's record before and after."""
    return {"StoppingInstances": _state_changes(changes)}


def termination_result(changes: Iterable[tuple[InstanceRecord, InstanceRecord]]) -> Result:
    """Return TerminateInstances' answer from each instance's record before and after."""
    return {"TerminatingInstances": _state_changes(changes)}


def chosen_records(
    records: Iterable[InstanceRecord],
    instance_ids: Sequence[str],
    *,
    now_s: float,
) -> list[InstanceRecord]:
    """Return the records of the named instances, each once, in the order of the names.

    Raises InvalidInstanceID.Malformed for what is no instance id, and InvalidInstanceID.NotFound
    if any of them is not among the records or was terminated more than an hour ago.
    """
    check_instance_ids(instance_ids)
    visible = {record.instance_id: record for record in records if is_visible(record, now_s=now_s)}
    names = list(dict.fromkeys(instance_ids))
    missing = [name for name in names if name not in visible]
    if len(missing) == 1:
        raise InvalidInstanceIDNotFound(f"The instance ID '{missing[0]}' does not exist")
    if missing:
        raise InvalidInstanceIDNotFound(f"The instance IDs '{', '.join(missing)}' do not exist")
    return [visible[name] for name in names]


def check_instance_ids(instance_ids: Iterable[str]) -> None:
    """Raise InvalidInstanceID.Malformed for what is no instance id."""
    for instance_id in instance_ids:
        if not _INSTANCE_ID.fullmatch(instance_id):
            raise InvalidInstanceIDMalformed(f'Invalid id: "{instance_id}"')


def is_visible(record: InstanceRecord, *, now_s: float) -> bool:
    """Tell whether a client still sees the instance: terminated ones stay for an hour."""
    return record.terminated_at_s is None or now_s - record.terminated_at_s < TERMINATED_VISIBLE_S


def _page_instances(asked: _DescribeParameters) -> int:
    """Return how many instances a page holds. Answers are bounded also if nobody asks for it."""
    if asked.max_results is None:
        return MAX_PAGE_INSTANCES
    if asked.instance_ids:
        raise InvalidParameterCombination(
            "The parameter instancesSet cannot be used with the parameter maxResults",
        )
    if not MIN_PAGE_INSTANCES <= asked.max_results <= MAX_PAGE_INSTANCES:
        raise InvalidParameterValue(
            f"Value ( {asked.max_results} ) for parameter maxResults is invalid. Expecting a value "
            f"from {MIN_PAGE_INSTANCES} to {MAX_PAGE_INSTANCES}.",
        )
    return asked.max_results


def _position(record: InstanceRecord) -> _Position:
    return (
        record.launched_at_s,
        record.reservation_id,
        record.launch_index,
        record.instance_id,
    )


def _token(record: InstanceRecord) -> str:
    return base64.urlsafe_b64encode(msgspec.json.encode(_position(record))).decode()


def _position_of_token(token: str) -> _Position:
    try:
        return msgspec.json.decode(base64.urlsafe_b64decode(token), type=_Position)
    except ValueError as error:  # msgspec's and binascii's errors are ValueErrors
        raise InvalidParameterValue("Unable to parse pagination token") from error


def _reservation(records: Sequence[InstanceRecord]) -> Result:
    return {
        "ReservationId": records[0].reservation_id,
        "OwnerId": records[0].account_id,
        "Groups": [],
        "Instances": [_instance(record) for record in records],
    }


def _instance(record: InstanceRecord) -> Result:
    """Return EC2's Instance; the node is its host. What EC2 always sends is there, if empty."""
    has_network = record.state != "terminated"
    return {
        "InstanceId": record.instance_id,
        "ImageId": record.image_id,
        "State": _state(record.state),
        "StateReason": _state_reason(record),
        "StateTransitionReason": _transition_reason(record),
        "PrivateDnsName": "",
        "PublicDnsName": "",
        "KeyName": record.key_name,
        "AmiLaunchIndex": record.launch_index,
        "ProductCodes": [],
        "InstanceType": record.instance_type,
        "LaunchTime": datetime.fromtimestamp(int(record.launched_at_s), UTC),
        "Placement": {
            "AvailabilityZone": record.availability_zone,
            "HostId": record.node,
            "Tenancy": "default",
        },
        "Monitoring": {"State": "disabled"},
        "Architecture": record.architecture,
        # Stopped and started, an instance finds it as it was.
        "RootDeviceType": "ebs",
        "RootDeviceName": record.root_device_name,
        # EC2's name volumes, which clients then ask for: here a disk is a part of its instance.
        "BlockDeviceMappings": [],
        "PrivateIpAddress": record.private_ip_address if has_network else None,
        "NetworkInterfaces": _network_interfaces(record) if has_network else [],
        "SecurityGroups": [],
        "ClientToken": record.client_token or "",
        "Tags": [{"Key": key, "Value": value} for key, value in record.tags.items()] or None,
    }


def _network_interfaces(record: InstanceRecord) -> list[Result]:
    """Return what there is of an instance's only interface; it goes with the instance."""
    if record.mac_address is None:
        return []
    return [
        {
            "MacAddress": record.mac_address,
            "PrivateIpAddress": record.private_ip_address,
            "Status": "in-use",
            "Attachment": {"DeviceIndex": 0, "Status": "attached", "DeleteOnTermination": True},
        }
    ]


def _state_changes(changes: Iterable[tuple[InstanceRecord, InstanceRecord]]) -> list[Result]:
    return [
        {
            "InstanceId": after.instance_id,
            "PreviousState": _state(before.state),
            "CurrentState": _state(after.state),
        }
        for before, after in changes
    ]


def _state_reason(record: InstanceRecord) -> Result | None:
    if record.unreachable_since_s is not None:
        since = datetime.fromtimestamp(int(record.unreachable_since_s), UTC)
        return {
            "Code": "Server.NodeUnreachable",
            "Message": (
                f"Server.NodeUnreachable: node {record.node} has not answered since "
                f"{since:%Y-%m-%dT%H:%M:%SZ}; the state is the last one known"
            ),
        }
    if record.state_reason_code is None:
        return None
    return {"Code": record.state_reason_code, "Message": record.state_reason_message}


def _transition_reason(record: InstanceRecord) -> str:
    """Return why and when an instance came into its state, as EC2 words it; empty if it just runs.

    Only what an owner asks for has a time.
    """
    if record.state_reason_code == "Client.UserInitiatedShutdown" and record.shutdown_asked_at_s:
        at = datetime.fromtimestamp(int(record.shutdown_asked_at_s), UTC)
        return f"User initiated ({at:%Y-%m-%d %H:%M:%S} GMT)"
    return record.state_reason_message or ""


def _state(state: InstanceState) -> Result:
    return {"Code": STATE_CODES[state], "Name": state}
