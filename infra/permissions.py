"""What each function's role may do, and nothing more."""

from collections.abc import Iterable

import aws_cdk as cdk
from aws_cdk import aws_iam as iam

from infra.config import FleetConfig
from infra.tables import Tables
from lambdas.settings import Region


def run_instances_statements(
    stack: cdk.Stack, config: FleetConfig, tables: Tables
) -> list[iam.PolicyStatement]:
    """Keep the fleet's records, read scores, and read the NATS credentials that are named."""
    statements = [
        _allow(
            [tables.fleet.table_arn],
            # A transaction needs the actions that it is made of.
            "dynamodb:BatchGetItem",
            "dynamodb:ConditionCheckItem",
            "dynamodb:DeleteItem",
            "dynamodb:GetItem",
            "dynamodb:PutItem",
            "dynamodb:Query",
            "dynamodb:UpdateItem",
        ),
        _allow([tables.region_scores.table_arn], "dynamodb:Query"),
    ]
    return statements + _secret_statements(stack, config.regions)


def score_regions_statements(
    stack: cdk.Stack, config: FleetConfig, tables: Tables
) -> list[iam.PolicyStatement]:
    """Keep scores and what is remembered between sweeps, and read the regions' signals."""
    statements = [
        _allow([tables.region_scores.table_arn], "dynamodb:GetItem", "dynamodb:PutItem"),
        # None of these can be narrowed to a resource.
        _allow(
            ["*"],
            "cloudwatch:GetMetricData",
            "ec2:DescribeCapacityBlockOfferings",
            "ec2:DescribeSpotPriceHistory",
            "ec2:GetSpotPlacementScores",
            "pricing:GetProducts",
        ),
    ]
    with_jobs = [region for region in config.regions if region.job_stack_name]
    if with_jobs:
        stacks = [
            _arn(stack, "cloudformation", f"stack/{region.job_stack_name}/*", region=region.name)
            for region in with_jobs
        ]
        # A queue's name is known only to its stack.
        queues = [_arn(stack, "sqs", "*", region=region.name) for region in with_jobs]
        statements += [
            _allow(stacks, "cloudformation:DescribeStacks"),
            _allow(queues, "sqs:GetQueueAttributes"),
        ]
    asked = [region for region in config.regions if region.telemetry == "fleet"]
    return statements + _secret_statements(stack, asked)


def reconcile_statements(
    stack: cdk.Stack, config: FleetConfig, tables: Tables
) -> list[iam.PolicyStatement]:
    """Keep the fleet's records, look up what lives, and read the NATS credentials."""
    statements = [
        _allow(
            [tables.fleet.table_arn],
            "dynamodb:BatchGetItem",
            "dynamodb:ConditionCheckItem",
            "dynamodb:DeleteItem",
            "dynamodb:GetItem",
            "dynamodb:PutItem",
            "dynamodb:Query",
            "dynamodb:UpdateItem",
        ),
        _allow([tables.live_index_arn], "dynamodb:Query"),
    ]
    return statements + _secret_statements(stack, config.regions)


def read_api_statements(tables: Tables) -> list[iam.PolicyStatement]:
    """Read scores and launches."""
    return [
        _allow([tables.region_scores.table_arn], "dynamodb:Query"),
        _allow([tables.fleet.table_arn], "dynamodb:BatchGetItem", "dynamodb:GetItem"),
    ]


def _secret_statements(stack: cdk.Stack, regions: Iterable[Region]) -> list[iam.PolicyStatement]:
    """Read the NATS credentials of these regions."""
    names = {region.nats_credentials_secret for region in regions} - {None}
    # Secrets Manager ends each ARN with six random characters.
    arns = sorted(_arn(stack, "secretsmanager", f"secret:{name}-??????") for name in names)
    return [_allow(arns, "secretsmanager:GetSecretValue")] if arns else []


def _allow(resources: list[str], *actions: str) -> iam.PolicyStatement:
    return iam.PolicyStatement(actions=list(actions), resources=resources)


def _arn(stack: cdk.Stack, service: str, resource: str, *, region: str | None = None) -> str:
    place = region or stack.region
    return f"arn:{stack.partition}:{service}:{place}:{stack.account}:{resource}"
