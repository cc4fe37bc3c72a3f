"""What an agent can't live with ends it in one clear line; what it can, it survives."""

from __future__ import annotations

import os
import resource
import stat
from typing import TYPE_CHECKING

import nats.errors
import nkeys  # type: ignore[import-untyped] # it has no annotations
import pytest

from fleetcast import messages
from fleetcast.subjects import NodeAction
from tests.agent_parts import attempt_request, instance_id
from tests.agent_process import (
    MEDIUM,
    AgentProcess,
    Requester,
    launch_subscriptions,
    promised_room,
)
from tests.eventually import eventually
from tests.nats_process import NatsProcess
from tests.settled_client import settled

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[NatsProcess]:
    async with NatsProcess(tmp_path) as running:
        yield running


@pytest.fixture
async def requester(server: NatsProcess) -> AsyncIterator[Requester]:
    async with await Requester.connect(server.url) as connected:
        yield connected


async def _refuses_to_start(agent: AgentProcess, *words: str) -> None:
    await agent.start()
    assert await agent.exit_code() == 1
    (line,) = agent.logs
    assert line["level"] == "CRITICAL"
    for word in words:
        assert word in line["why"]


async def test_a_server_that_is_not_there_ends_it_with_one_clear_line(tmp_path: Path) -> None:
    agent = AgentProcess(tmp_path, "nats://127.0.0.1:9")
    await _refuses_to_start(agent, "can't connect", "nats://127.0.0.1:9")


@pytest.mark.parametrize(
    "credentials",
    [
        None,
        "no credentials",
        "-----BEGIN USER NKEY SEED-----\nSUAAA\n------END USER NKEY SEED------\n",
        "-----BEGIN NATS USER JWT-----\nabc\n------END NATS USER JWT------\n",
    ],
)
async def test_a_credentials_file_that_is_none_ends_it_with_one_clear_line(
    tmp_path: Path, server: NatsProcess, credentials: str | None
) -> None:
    path = tmp_path / "node.creds"
    if credentials is not None:
        path.write_text(credentials, encoding="utf-8")
    agent = AgentProcess(tmp_path, server.url, **{"nats.credentials_file": str(path)})
    await _refuses_to_start(agent, "nats.credentials_file", str(path))


@pytest.mark.parametrize("seed", [None, "SUAAA"])
async def test_credentials_that_the_server_refuses_end_it_with_one_clear_line(
    tmp_path: Path, seed: str | None
) -> None:
    new_seed = nkeys.encode_seed(os.urandom(32), nkeys.PREFIX_BYTE_USER)
    known = nkeys.from_seed(bytearray(new_seed)).public_key.decode()
    credentials = tmp_path / "node.creds"
    credentials.write_text(
        "-----BEGIN NATS USER JWT-----\nabc\n------END NATS USER JWT------\n"
        f"-----BEGIN USER NKEY SEED-----\n{seed or new_seed.decode()}\n"
        "------END USER NKEY SEED------\n",
        encoding="utf-8",
    )
    async with NatsProcess(
        tmp_path, f"authorization: {{ users: [{{ nkey: {known} }}] }}"
    ) as server:
        agent = AgentProcess(tmp_path, server.url, **{"nats.credentials_file": str(credentials)})
        await _refuses_to_start(agent, "NATS can't be used" if seed else "can't connect")
        assert new_seed.decode() not in str(agent.logs)


async def test_a_wrong_configuration_ends_it_naming_the_key(
    tmp_path: Path, server: NatsProcess
) -> None:
    await _refuses_to_start(AgentProcess(tmp_path, server.url, families=["t33"]), "families[0]")
    (tmp_path / "file").touch()
    wrong_dir = AgentProcess(tmp_path, server.url, state_dir=str(tmp_path / "file" / "state"))
    await _refuses_to_start(wrong_dir, "state_dir")
    (tmp_path / "state").mkdir()
    (tmp_path / "state" / "guests").touch()
    await _refuses_to_start(AgentProcess(tmp_path, server.url), "state_dir")


async def test_a_second_agent_on_the_same_state_ends(tmp_path: Path, server: NatsProcess) -> None:
    async with AgentProcess(tmp_path, server.url):
        await _refuses_to_start(AgentProcess(tmp_path, server.url), "another agent has")


@pytest.mark.parametrize("denied", ["ec2.RunInstances.>", "ec2.node.>"])
async def test_a_subject_that_the_server_refuses_ends_it(tmp_path: Path, denied: str) -> None:
    config = f"""
        authorization {{ users: [{{ user: agent, password: x, permissions: {{
            publish: "_INBOX.>", subscribe: {{ allow: ">", deny: "{denied}" }} }} }}] }}
        no_auth_user: agent
    """
    async with NatsProcess(tmp_path, config) as server:
        agent = AgentProcess(tmp_path, server.url)
        await agent.start()
        assert await agent.exit_code() == 1
        last = agent.logs[-1]
        assert last["level"] == "CRITICAL"
        assert denied.removesuffix(">").lower() in last["why"].lower()


async def test_a_reply_that_the_server_refuses_does_not_end_it(tmp_path: Path) -> None:
    config = """
        authorization { users: [
            { user: agent, password: x, permissions: {
                publish: "_INBOX.>", subscribe: ["ec2.>"] } },
            { user: requester, password: x } ] }
        no_auth_user: agent
    """
    async with NatsProcess(tmp_path, config) as server, AgentProcess(tmp_path, server.url) as agent:
        url = server.url.replace("nats://", "nats://requester:x@")
        async with await Requester.connect(url) as requester:
            await requester.connection.publish(
                "ec2.region.us-east-1.Inventory",
                messages.encode(messages.RegionRequest()),
                reply="not.an.inbox",
            )
            await agent.says("NATS error")
            assert await requester.accepted(1) == (instance_id(1),)


async def test_an_agent_whose_disk_is_full_says_node_fault_and_leaves_its_subjects(
    tmp_path: Path, server: NatsProcess, requester: Requester
) -> None:
    async with AgentProcess(tmp_path, server.url) as agent:
        assert await requester.accepted(1)
        await agent.says("instances running")
        resource.prlimit(agent.pid, resource.RLIMIT_FSIZE, (0, 0))
        reply = await requester.launch(2)
        assert isinstance(reply, messages.Rejected)
        assert reply.reason == "node_fault"
        await eventually(lambda: launch_subscriptions(server), lambda held: not held)
        assert (await requester.capacity()).closed
        # It goes on answering for what it holds.
        assert await requester.inventory() == {instance_id(1): "running"}


@pytest.mark.parametrize(
    ("action", "order"),
    [
        (NodeAction.COMMIT, attempt_request(1)),
        (NodeAction.RELEASE, attempt_request(1)),
        (NodeAction.STOP, messages.InstancesRequest(instance_ids=(instance_id(2),))),
        (NodeAction.TERMINATE, messages.InstancesRequest(instance_ids=(instance_id(2),))),
    ],
)
async def test_an_order_that_a_full_disk_refuses_is_not_confirmed_and_the_node_leaves(
    tmp_path: Path,
    server: NatsProcess,
    requester: Requester,
    action: NodeAction,
    order: messages.Message,
) -> None:
    async with AgentProcess(tmp_path, server.url) as agent:
        assert await requester.accepted(1, hold_ms=60_000)
        assert await requester.accepted(2)
        running = {instance_id(1): "pending", instance_id(2): "running"}
        await eventually(requester.inventory, lambda held: held == running)
        resource.prlimit(agent.pid, resource.RLIMIT_FSIZE, (0, 0))
        with pytest.raises(nats.errors.TimeoutError):
            await requester.ask_node(action, order, timeout_s=1)
        await eventually(lambda: launch_subscriptions(server), lambda held: not held)
        await agent.says("journal unwritable: taking no more launches")
        assert "journal unwritable" in ((await requester.capacity()).closed or "")
        assert await requester.inventory() == running


async def test_its_state_is_for_its_own_user_only(tmp_path: Path, server: NatsProcess) -> None:
    async with AgentProcess(tmp_path, server.url):
        assert stat.S_IMODE((tmp_path / "state").stat().st_mode) == 0o700


async def test_hostile_requests_leave_an_agent_that_serves(
    tmp_path: Path, server: NatsProcess, requester: Requester
) -> None:
    async with AgentProcess(tmp_path, server.url) as agent:
        connection = requester.connection
        for payload in (b"", b"\xff", b"[" * 100_000, b'{"v":1,"x":' + b"{" * 50_000):
            for subject in (MEDIUM, "ec2.node.us-east-1.n1.Terminate", "ec2.region.us-east-1.X"):
                await connection.publish(subject, payload, reply="_INBOX.nobody")
                await connection.publish(subject, payload, headers={"Fleetcast-Attempt": "x" * 999})
        await settled(connection)  # or the server may not have counted them
        await eventually(lambda: promised_room(server), lambda held: held.get(MEDIUM) == 4)
        assert await requester.accepted(1, 2, 3, 4) == tuple(map(instance_id, (1, 2, 3, 4)))
        assert not [one for one in agent.logs if one["level"] in {"ERROR", "CRITICAL"}]
