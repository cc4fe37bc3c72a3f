"""What a deployment makes: who may call, what each role may do, what is kept."""

import hashlib
import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from fleetcast.errors import InvalidConfiguration
from fleetcast.instance_types import ec2_catalogue
from tests.tables import FLEET, tables

Template = dict[str, Any]


def resources(template: Template, kind: str) -> dict[str, Any]:
    return {
        name: resource
        for name, resource in template["Resources"].items()
        if resource["Type"] == kind
    }


def the(template: Template, kind: str, name: str) -> dict[str, Any]:
    """Return the one resource of a kind whose logical id holds a name."""
    found: dict[str, Any]
    (found,) = (
        resource for logical_id, resource in resources(template, kind).items() if name in logical_id
    )
    return found


def statements(template: Template, role: str) -> Iterator[tuple[set[str], str]]:
    """Yield the (actions, resources as JSON) that a role's policy allows."""
    policy = the(template, "AWS::IAM::Policy", role)
    for statement in policy["Properties"]["PolicyDocument"]["Statement"]:
        actions = statement["Action"]
        assert statement["Effect"] == "Allow"
        yield (
            set(actions) if isinstance(actions, list) else {actions},
            json.dumps(statement["Resource"]),
        )


def allowed(template: Template, role: str, service: str) -> dict[str, str]:
    """Map each action of a service that a role may do to the resources, as JSON."""
    return {
        action: where
        for actions, where in statements(template, role)
        for action in actions
        if action.startswith(f"{service}:")
    }


# --- the endpoint --------------------------------------------------------------------------


def test_every_method_of_the_api_asks_for_an_iam_signature(template: Template) -> None:
    methods = resources(template, "AWS::ApiGateway::Method").values()
    assert {method["Properties"]["HttpMethod"] for method in methods} == {"GET", "POST"}
    assert {method["Properties"]["AuthorizationType"] for method in methods} == {"AWS_IAM"}


def test_the_api_has_these_paths_and_no_other(template: Template) -> None:
    parts = resources(template, "AWS::ApiGateway::Resource")

    def path_of(resource: Any) -> str:  # noqa: ANN401 - a reference in a template
        name = resource.get("Ref")
        if name not in parts:
            return ""  # the root
        properties = parts[name]["Properties"]
        return f"{path_of(properties['ParentId'])}/{properties['PathPart']}"

    methods = resources(template, "AWS::ApiGateway::Method").values()
    served = {
        (method["Properties"]["HttpMethod"], path_of(method["Properties"]["ResourceId"]) or "/")
        for method in methods
    }
    assert served == {
        ("POST", "/"),
        ("GET", "/"),
        ("POST", "/regions/{region}"),
        ("GET", "/regions/{region}"),
        ("GET", "/v1/scores"),
        ("GET", "/v1/recommendation"),
        ("GET", "/v1/launches/{reservation-id}"),
    }


def test_the_api_is_regional_and_throttled(template: Template) -> None:
    (api,) = resources(template, "AWS::ApiGateway::RestApi").values()
    assert api["Properties"]["EndpointConfiguration"] == {"Types": ["REGIONAL"]}
    (stage,) = resources(template, "AWS::ApiGateway::Stage").values()
    (settings,) = stage["Properties"]["MethodSettings"]
    assert (settings["ThrottlingRateLimit"], settings["ThrottlingBurstLimit"]) == (50, 100)


def test_access_logs_hold_no_body_and_no_query_string(template: Template) -> None:
    (stage,) = resources(template, "AWS::ApiGateway::Stage").values()
    logged = json.loads(stage["Properties"]["AccessLogSetting"]["Format"])
    assert logged["status"] == "$context.status"
    assert all(value.startswith("$context.") for value in logged.values())
    (settings,) = stage["Properties"]["MethodSettings"]
    assert settings["DataTraceEnabled"] is False


# --- the functions -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "handler", "timeout_s"),
    [
        ("FunctionsRunInstances", "lambdas.run_instances.handler.handle", 25),
        ("FunctionsScoreRegions", "lambdas.score_regions.handler.handle", 50),
        ("FunctionsReconcile", "lambdas.reconcile.handler.handle", 50),
    ],
)
def test_functions_run_on_arm64_python_3_13(
    template: Template, name: str, handler: str, timeout_s: int
) -> None:
    function = the(template, "AWS::Lambda::Function", name)["Properties"]
    assert function["Runtime"] == "python3.13"
    assert function["Architectures"] == ["arm64"]
    assert function["Handler"] == handler
    assert function["Timeout"] == timeout_s
    assert "VpcConfig" not in function


def test_every_log_group_forgets_after_the_configured_days(
    synthesise: Callable[..., Template],
) -> None:
    groups = resources(synthesise(log_retention_days=7), "AWS::Logs::LogGroup").values()
    assert [group["Properties"]["RetentionInDays"] for group in groups] == [7] * 5


def test_functions_stand_in_the_configured_subnets(synthesise: Callable[..., Template]) -> None:
    template = synthesise(vpc={"subnet_ids": ["subnet-1"], "security_group_ids": ["sg-1"]})
    for function in resources(template, "AWS::Lambda::Function").values():
        assert function["Properties"]["VpcConfig"] == {
            "SubnetIds": ["subnet-1"],
            "SecurityGroupIds": ["sg-1"],
        }
    for name in ("RunInstances", "ScoreRegions", "Reconcile"):
        role = the(template, "AWS::IAM::Role", f"Functions{name}Role")
        assert "AWSLambdaENIManagementAccess" in json.dumps(role["Properties"])


def test_functions_are_told_of_endpoints_under_the_names_that_sdks_read(
    synthesise: Callable[..., Template],
) -> None:
    urls = {"ec2": "http://127.0.0.1:1", "secretsmanager": "https://vpce.example"}
    for function in resources(synthesise(aws_endpoint_urls=urls), "AWS::Lambda::Function").values():
        variables = function["Properties"]["Environment"]["Variables"]
        assert variables["AWS_ENDPOINT_URL_EC2"] == "http://127.0.0.1:1"
        assert variables["AWS_ENDPOINT_URL_SECRETS_MANAGER"] == "https://vpce.example"


def test_more_than_lambda_takes_in_an_environment_is_refused_at_synth(
    synthesise: Callable[..., Template],
) -> None:
    # Names without a pattern: what repeats itself is compressed and fits.
    regions = [
        {
            "name": f"region-{n}",
            "nats_url": f"tls://{hashlib.sha256(bytes([n])).hexdigest()}.example.com:4222",
        }
        for n in range(100)
    ]
    with pytest.raises(InvalidConfiguration, match=r"FLEETCAST_REGIONS .*at most 4096"):
        synthesise(regions=regions, default_region="region-0")


def test_thirty_regions_with_a_hundred_scored_types_fit_into_the_environment(
    synthesise: Callable[..., Template],
) -> None:
    regions = [
        {
            "name": f"region-{n}",
            "nats_url": f"tls://nats.region-{n}.fleet.example.com:4222",
            "nats_credentials_secret": f"fleetcast/region-{n}/nats",
            "job_stack_name": f"jobs-region-{n}",
            "cluster_name": f"cluster-region-{n}",
        }
        for n in range(30)
    ]
    types = sorted(one.name for one in ec2_catalogue())[:100]
    template = synthesise(
        regions=regions,
        default_region="region-0",
        scoring={"scored_instance_types": types},
    )
    for function in resources(template, "AWS::Lambda::Function").values():
        variables = function["Properties"]["Environment"]["Variables"]
        assert "region-29" not in str(variables)  # compressed


# --- what roles may do ---------------------------------------------------------------------


def test_run_instances_may_do_no_more_than_it_needs(template: Template) -> None:
    by_service: dict[str, set[str]] = {}
    for actions, where in statements(template, "FunctionsRunInstancesRole"):
        assert where != '"*"'
        for action in actions:
            service, _, verb = action.partition(":")
            by_service.setdefault(service, set()).add(verb)
    item_actions = {
        f"{verb}Item" for verb in ("BatchGet", "ConditionCheck", "Delete", "Get", "Put", "Update")
    }
    assert by_service == {
        "dynamodb": {"Query"} | item_actions,
        "logs": {"CreateLogStream", "PutLogEvents"},
        "secretsmanager": {"GetSecretValue"},
    }


def test_run_instances_writes_to_the_fleet_table_only(template: Template) -> None:
    for actions, where in statements(template, "FunctionsRunInstancesRole"):
        if "dynamodb:PutItem" in actions:
            assert "TablesFleet" in where
            assert "RegionScores" not in where


def test_only_the_named_secrets_can_be_read_and_each_is_granted_once(template: Template) -> None:
    where = allowed(template, "FunctionsRunInstancesRole", "secretsmanager")
    assert where["secretsmanager:GetSecretValue"].count(":secret:fleetcast/nats-??????") == 1
    assert allowed(template, "FunctionsScoreRegionsRole", "secretsmanager") == {}
    assert allowed(template, "FunctionsReadApiRole", "secretsmanager") == {}


def test_score_regions_reads_the_secrets_of_the_regions_whose_agents_it_asks(
    synthesise: Callable[..., Template],
) -> None:
    regions = [
        {
            "name": "lab",
            "nats_url": "tls://nats.lab.example.com:4222",
            "nats_credentials_secret": "fleetcast/lab",
            "telemetry": "fleet",
        },
        {
            "name": "cloud",
            "nats_url": "tls://nats.cloud.example.com:4222",
            "nats_credentials_secret": "fleetcast/cloud",
        },
    ]
    where = allowed(
        synthesise(regions=regions, default_region="lab"),
        "FunctionsScoreRegionsRole",
        "secretsmanager",
    )["secretsmanager:GetSecretValue"]
    assert "fleetcast/lab" in where
    assert "fleetcast/cloud" not in where


def test_read_api_reads_tables_and_nothing_else(template: Template) -> None:
    granted: dict[str, set[str]] = {}
    for actions, where in statements(template, "FunctionsReadApiRole"):
        assert where != '"*"'
        for action in actions:
            table = next(
                (name for name in ("RegionScores", "Fleet") if f"Tables{name}" in where), ""
            )
            granted.setdefault(table, set()).add(action)
    assert granted == {
        "RegionScores": {"dynamodb:Query"},
        "Fleet": {"dynamodb:BatchGetItem", "dynamodb:GetItem"},
        "": {"logs:CreateLogStream", "logs:PutLogEvents"},
    }


def test_scores_that_grow_old_raise_an_alarm_also_when_nothing_is_published(
    synthesise: Callable[..., Template],
) -> None:
    topic = "arn:aws:sns:us-east-1:123456789012:pages"
    template = synthesise(alarm_topic_arn=topic, sweep_minutes=5)
    alarm = the(template, "AWS::CloudWatch::Alarm", "StaleScores")["Properties"]
    assert alarm["Namespace"] == "fleetcast"
    assert alarm["MetricName"] == "OldestScoreAge"
    assert alarm["Threshold"] == 3 * 5 * 60
    assert alarm["TreatMissingData"] == "breaching"
    assert alarm["AlarmActions"] == [topic]


def test_without_secrets_no_secret_can_be_read(synthesise: Callable[..., Template]) -> None:
    open_regions = [{"name": "lab", "nats_url": "nats://127.0.0.1:4222"}]
    template = synthesise(regions=open_regions, default_region="lab")
    assert allowed(template, "FunctionsRunInstancesRole", "secretsmanager") == {}


def test_score_regions_reads_the_named_job_stacks_and_queues_of_their_regions(
    template: Template,
) -> None:
    role = "FunctionsScoreRegionsRole"
    stacks = allowed(template, role, "cloudformation")["cloudformation:DescribeStacks"]
    assert ":cloudformation:us-east-1:" in stacks
    assert ":stack/jobs/*" in stacks
    assert "eu-west-1" not in stacks
    queues = allowed(template, role, "sqs")["sqs:GetQueueAttributes"]
    assert queues != '"*"'


def test_score_regions_cannot_touch_the_fleet_table(template: Template) -> None:
    for actions, where in statements(template, "FunctionsScoreRegionsRole"):
        if any(action.startswith("dynamodb:") for action in actions):
            assert "TablesFleet" not in where


# --- tables --------------------------------------------------------------------------------


def test_tables_are_kept_backed_up_and_protected(template: Template) -> None:
    tables = resources(template, "AWS::DynamoDB::GlobalTable")
    assert len(tables) == 2
    for table in tables.values():
        assert table["DeletionPolicy"] == table["UpdateReplacePolicy"] == "Retain"
        (replica,) = table["Properties"]["Replicas"]
        assert replica["DeletionProtectionEnabled"] is True
        assert replica["PointInTimeRecoverySpecification"] == {"PointInTimeRecoveryEnabled": True}


def test_tables_have_the_keys_and_the_expiry_that_records_are_written_with(
    template: Template,
) -> None:
    for table in resources(template, "AWS::DynamoDB::GlobalTable").values():
        properties = table["Properties"]
        keys = [(key["AttributeName"], key["KeyType"]) for key in properties["KeySchema"]]
        assert keys == [("pk", "HASH"), ("sk", "RANGE")]
        assert properties["BillingMode"] == "PAY_PER_REQUEST"
        assert properties["TimeToLiveSpecification"] == {
            "AttributeName": "expires_at",
            "Enabled": True,
        }


def test_the_fleet_table_has_the_index_that_tests_make_for_it(template: Template) -> None:
    """A test's table would else prove nothing of the deployed one."""
    (deployed,) = the(template, "AWS::DynamoDB::GlobalTable", "Fleet")["Properties"][
        "GlobalSecondaryIndexes"
    ]
    with tables(FLEET) as client:
        (made,) = client.describe_table(TableName=FLEET)["Table"]["GlobalSecondaryIndexes"]
    assert deployed == {key: made[key] for key in ("IndexName", "KeySchema", "Projection")}


def test_tables_that_need_not_be_kept_go_with_the_stack(
    synthesise: Callable[..., Template],
) -> None:
    template = synthesise(retain_tables=False)
    for table in resources(template, "AWS::DynamoDB::GlobalTable").values():
        assert table["DeletionPolicy"] == "Delete"
        (replica,) = table["Properties"]["Replicas"]
        assert replica["DeletionProtectionEnabled"] is False


# --- sweeps --------------------------------------------------------------------------------


def test_regions_are_scored_by_the_clock_with_retries_and_a_dead_letter_queue(
    synthesise: Callable[..., Template],
) -> None:
    template = synthesise(sweep_minutes=2)
    properties = the(template, "AWS::Scheduler::Schedule", "Sweeps")["Properties"]
    assert properties["ScheduleExpression"] == "rate(2 minutes)"
    target = properties["Target"]
    assert "FunctionsScoreRegions" in json.dumps(target["Arn"])
    assert target["RetryPolicy"] == {"MaximumEventAgeInSeconds": 120, "MaximumRetryAttempts": 2}
    assert "SweepsFailed" in json.dumps(target["DeadLetterConfig"])


def test_a_sweep_that_fails_while_it_runs_reaches_the_dead_letter_queue(
    template: Template,
) -> None:
    config = the(template, "AWS::Lambda::EventInvokeConfig", "ScoreRegions")
    assert "FunctionsScoreRegions" in json.dumps(config["Properties"]["FunctionName"])
    assert "SweepsFailed" in json.dumps(config["Properties"]["DestinationConfig"]["OnFailure"])


def test_the_dead_letter_queue_is_encrypted_at_rest_and_on_the_way(template: Template) -> None:
    (queue,) = resources(template, "AWS::SQS::Queue").values()
    assert queue["Properties"]["SqsManagedSseEnabled"] is True
    (policy,) = resources(template, "AWS::SQS::QueuePolicy").values()
    denied = [
        statement
        for statement in policy["Properties"]["PolicyDocument"]["Statement"]
        if statement["Effect"] == "Deny"
    ]
    assert [statement["Condition"] for statement in denied] == [
        {"Bool": {"aws:SecureTransport": "false"}}
    ]


# --- reconcile -----------------------------------------------------------------------------


def test_records_are_compared_each_minute_and_a_run_is_not_repeated(template: Template) -> None:
    properties = the(template, "AWS::Scheduler::Schedule", "Reconciles")["Properties"]
    assert properties["ScheduleExpression"] == "rate(1 minute)"
    target = properties["Target"]
    assert "FunctionsReconcile" in json.dumps(target["Arn"])
    assert target["RetryPolicy"] == {"MaximumEventAgeInSeconds": 60, "MaximumRetryAttempts": 0}
    config = the(template, "AWS::Lambda::EventInvokeConfig", "Reconcile")["Properties"]
    assert config["MaximumRetryAttempts"] == 0


def test_reconcile_touches_the_fleet_table_its_index_and_the_named_secrets_only(
    template: Template,
) -> None:
    by_service: dict[str, set[str]] = {}
    for actions, where in statements(template, "FunctionsReconcileRole"):
        for action in actions:
            service, _, _ = action.partition(":")
            by_service.setdefault(service, set()).add(where)
    assert by_service.keys() == {"dynamodb", "logs", "secretsmanager"}
    assert all("TablesFleet" in where for where in by_service["dynamodb"])
    assert any("/index/live" in where for where in by_service["dynamodb"])
    (secrets,) = by_service["secretsmanager"]
    assert ":secret:fleetcast/nats-??????" in secrets


@pytest.mark.parametrize(
    ("name", "metric", "operator", "threshold", "lasting_s", "missing"),
    [
        ("NoReconcile", "RunsCompleted", "LessThanThreshold", 1, 300, "breaching"),
        ("UnknownInstances", "UnknownInstances", "GreaterThanThreshold", 0, 300, "ignore"),
        ("OrphansDestroyed", "OrphansDestroyed", "GreaterThanThreshold", 0, 300, "notBreaching"),
        ("OrphansHeldBack", "OrphansHeldBack", "GreaterThanThreshold", 0, 300, "notBreaching"),
    ],
)
def test_what_reconcile_finds_and_that_it_does_not_run_raise_alarms(
    synthesise: Callable[..., Template],
    name: str,
    metric: str,
    operator: str,
    threshold: int,
    lasting_s: int,
    missing: str,
) -> None:
    topic = "arn:aws:sns:us-east-1:123456789012:pages"
    alarm = the(synthesise(alarm_topic_arn=topic), "AWS::CloudWatch::Alarm", name)["Properties"]
    assert (alarm["Namespace"], alarm["MetricName"]) == ("fleetcast", metric)
    assert alarm["Dimensions"] == [{"Name": "service", "Value": "reconcile"}]
    assert (alarm["ComparisonOperator"], alarm["Threshold"]) == (operator, threshold)
    assert alarm["Period"] * alarm["EvaluationPeriods"] == lasting_s
    assert alarm["TreatMissingData"] == missing
    assert alarm["AlarmActions"] == [topic]


# --- outputs -------------------------------------------------------------------------------


def test_outputs_name_what_others_need(template: Template) -> None:
    assert set(template["Outputs"]) == {
        "ApiUrl",
        "FleetTable",
        "ReadApiFunction",
        "ReconcileFunction",
        "RegionScoresTable",
        "RunInstancesFunction",
        "ScoreRegionsFunction",
    }
