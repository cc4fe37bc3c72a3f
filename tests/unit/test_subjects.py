"""Subjects: one spelling for both sides, and nothing in a name that NATS would read."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleetcast import subjects
from fleetcast.errors import InvalidSubjectToken
from fleetcast.instance_types import ec2_catalogue
from fleetcast.subjects import NodeAction, RegionAction

_NO_TOKENS = ["", "a.b", "*", ">", "a b", "us-east-1\n", "É", "a\x00", "US"]


def _matches(subscription: str, subject: str) -> bool:
    """NATS's rule, for a subscription that may hold `*`."""
    wanted, given_ = subscription.split("."), subject.split(".")
    return len(wanted) == len(given_) and all(
        want in ("*", token) for want, token in zip(wanted, given_, strict=True)
    )


def test_a_launch_is_addressed_by_region_family_and_size() -> None:
    assert subjects.launch_subject("us-east-1", "t3.medium") == (
        "ec2.RunInstances.us-east-1.t3.medium"
    )


def test_a_pinned_launch_adds_the_zone() -> None:
    assert subjects.launch_subject("us-east-1", "t3.medium", "us-east-1a") == (
        "ec2.RunInstances.us-east-1.t3.medium.us-east-1a"
    )


def test_every_ec2_type_has_a_subject_of_its_own() -> None:
    names = [one.name for one in ec2_catalogue()]
    assert len({subjects.launch_subject("r", name) for name in names}) == len(names)


@pytest.mark.parametrize("name", _NO_TOKENS)
def test_a_region_or_zone_that_nats_would_read_is_refused(name: str) -> None:
    with pytest.raises(InvalidSubjectToken, match="region"):
        subjects.launch_subject(name, "t3.medium")
    with pytest.raises(InvalidSubjectToken, match="zone"):
        subjects.launch_subject("r", "t3.medium", name)
    with pytest.raises(InvalidSubjectToken, match="region"):
        subjects.region_subscription(name)


@pytest.mark.parametrize("name", ["t3", "t3.", ".medium", "t3.a.b", "t3.*", "t3.>", "T3.medium"])
def test_what_is_no_family_and_size_is_refused(name: str) -> None:
    with pytest.raises(InvalidSubjectToken, match="instance type"):
        subjects.launch_subject("r", name)


@pytest.mark.parametrize("name", ["", "a.b", "*", ">", "n 1", "n1\n"])
def test_a_node_that_nats_would_read_is_refused(name: str) -> None:
    with pytest.raises(InvalidSubjectToken, match="node"):
        subjects.node_subject("r", name, NodeAction.DESCRIBE)
    with pytest.raises(InvalidSubjectToken, match="node"):
        subjects.node_subscription("r", name)


@pytest.mark.parametrize("action", NodeAction)
def test_a_node_hears_all_its_actions_and_no_other_nodes(action: NodeAction) -> None:
    subscription = subjects.node_subscription("r", "n1")
    assert _matches(subscription, subjects.node_subject("r", "n1", action))
    assert not _matches(subscription, subjects.node_subject("r", "n2", action))
    assert not _matches(subscription, subjects.node_subject("r2", "n1", action))


@pytest.mark.parametrize("action", RegionAction)
def test_an_agent_hears_all_actions_of_its_region_only(action: RegionAction) -> None:
    subscription = subjects.region_subscription("r")
    assert _matches(subscription, subjects.region_subject("r", action))
    assert not _matches(subscription, subjects.region_subject("r2", action))


@pytest.mark.parametrize("action", [*NodeAction])
def test_the_action_is_read_back_from_the_subject(action: NodeAction) -> None:
    assert subjects.action_of(subjects.node_subject("r", "n1", action)) == action


@given(st.text(min_size=1, max_size=20), st.text(min_size=1, max_size=20))
def test_no_name_changes_the_number_of_tokens(region: str, node: str) -> None:
    try:
        subject = subjects.node_subject(region, node, NodeAction.DESCRIBE)
    except InvalidSubjectToken:
        return
    assert subject.split(".") == ["ec2", "node", region, node, "Describe"]
    assert not set(subject) & set(" \t\r\n*>")
