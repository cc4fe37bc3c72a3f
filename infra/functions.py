"""The functions: their code, what each is told, and where they run."""

from collections.abc import Mapping
from typing import cast

import aws_cdk as cdk
import msgspec
from aws_cdk import aws_iam as iam
from aws_cdk import aws_lambda as lambda_
from constructs import Construct

from fleetcast.errors import InvalidConfiguration
from infra.config import FleetConfig
from infra.log_groups import create_log_group
from infra.permissions import (
    read_api_statements,
    reconcile_statements,
    run_instances_statements,
    score_regions_statements,
)
from infra.tables import Tables
from lambdas.settings import (
    ReadApiSettings,
    ReconcileSettings,
    RunInstancesSettings,
    ScoreRegionsSettings,
    encode_settings,
)

# Lambda refuses a function whose variables, names and values together, take more.
ENVIRONMENT_LIMIT_BYTES = 4096
# What a table's name, made up by CloudFormation at deployment, takes at most.
_GENERATED_NAME_BYTES = 64
# A launch ends within 20 s; the rest is for a cold start and for recording the end. API Gateway
# gives up at 29 s.
_RUN_INSTANCES_TIMEOUT_S = 25
# Less than the shortest interval between sweeps, so that they don't overlap.
_SCORE_REGIONS_TIMEOUT_S = 50
_READ_API_TIMEOUT_S = 10
# Less than the minute between two runs.
_RECONCILE_TIMEOUT_S = 50
# Lambda hands out CPU in proportion to memory, and a cold start is all CPU.
_MEMORY_MIB = 1024
# botocore looks for an endpoint under the name that AWS gave the service, not its own.
_ENDPOINT_VARIABLES = {"secretsmanager": "AWS_ENDPOINT_URL_SECRETS_MANAGER"}


class Functions(Construct):
    """run_instances, score_regions, read_api and reconcile.

    Each has a role and a log group of its own.
    """

    def __init__(
        self,
        scope: Construct,
        construct_id: str,
        *,
        config: FleetConfig,
        code: lambda_.Code,
        tables: Tables,
    ) -> None:
        super().__init__(scope, construct_id)
        self._config = config
        self._code = code
        stack = cdk.Stack.of(self)
        self.run_instances = self._function(
            "RunInstances",
            handler="lambdas.run_instances.handler.handle",
            timeout_s=_RUN_INSTANCES_TIMEOUT_S,
            statements=run_instances_statements(stack, config, tables),
            settings=RunInstancesSettings(
                fleet_table=tables.fleet.table_name,
                region_scores_table=tables.region_scores.table_name,
                regions=config.regions,
                default_region=config.default_region,
                instance_types=config.instance_types,
                **msgspec.structs.asdict(config.launching),
            ),
        )
        self.score_regions = self._function(
            "ScoreRegions",
            handler="lambdas.score_regions.handler.handle",
            timeout_s=_SCORE_REGIONS_TIMEOUT_S,
            statements=score_regions_statements(stack, config, tables),
            settings=ScoreRegionsSettings(
                region_scores_table=tables.region_scores.table_name,
                regions=config.regions,
                **msgspec.structs.asdict(config.scoring),
            ),
        )

        self.read_api = self._function(
            "ReadApi",
            handler="lambdas.read_api.handler.handle",
            timeout_s=_READ_API_TIMEOUT_S,
            statements=read_api_statements(tables),
            settings=ReadApiSettings(
                fleet_table=tables.fleet.table_name,
                region_scores_table=tables.region_scores.table_name,
                regions=config.regions,
                default_region=config.default_region,
                instance_types=config.instance_types,
                weights=config.scoring.weights,
                max_score_age_s=config.launching.max_score_age_s,
                tie_band=config.launching.tie_band,
            ),
        )
        self.reconcile = self._function(
            "Reconcile",
            handler="lambdas.reconcile.handler.handle",
            timeout_s=_RECONCILE_TIMEOUT_S,
            statements=reconcile_statements(stack, config, tables),
            settings=ReconcileSettings(
                fleet_table=tables.fleet.table_name,
                regions=config.regions,
                scored_instance_types=config.scoring.scored_instance_types,
            ),
        )

    def _function(
        self,
        construct_id: str,
        *,
        handler: str,
        timeout_s: int,
        statements: list[iam.PolicyStatement],
        settings: msgspec.Struct,
    ) -> lambda_.Function:
        environment = encode_settings(settings) | {
            _ENDPOINT_VARIABLES.get(service, f"AWS_ENDPOINT_URL_{service.upper()}"): url
            for service, url in self._config.aws_endpoint_urls.items()
        }
        check_environment_size(construct_id, environment)
        log_group = create_log_group(
            self, f"{construct_id}Logs", retention_days=self._config.log_retention_days
        )
        role = iam.Role(
            self,
            f"{construct_id}Role",
            assumed_by=cast("iam.IPrincipal", iam.ServicePrincipal("lambda.amazonaws.com")),
        )
        log_group.grant_write(role)
        for statement in statements:
            role.add_to_policy(statement)
        function = lambda_.Function(
            self,
            construct_id,
            runtime=lambda_.Runtime.PYTHON_3_13,
            architecture=lambda_.Architecture.ARM_64,
            code=self._code,
            handler=handler,
            timeout=cdk.Duration.seconds(timeout_s),
            memory_size=_MEMORY_MIB,
            environment=environment,
            role=role,
            log_group=log_group,
        )
        self._attach_to_vpc(function, role)
        return function

    def _attach_to_vpc(self, function: lambda_.Function, role: iam.Role) -> None:
        """Put the function in the configured subnets, named by id: synth looks nothing up."""
        vpc = self._config.vpc
        if vpc is None:
            return
        role.add_managed_policy(
            iam.ManagedPolicy.from_aws_managed_policy_name(
                "service-role/AWSLambdaENIManagementAccess"
            )
        )
        resource = cast("lambda_.CfnFunction", function.node.default_child)
        resource.vpc_config = lambda_.CfnFunction.VpcConfigProperty(
            subnet_ids=list(vpc.subnet_ids), security_group_ids=list(vpc.security_group_ids)
        )


def check_environment_size(function: str, environment: Mapping[str, str]) -> None:
    """Refuse at synth what Lambda would refuse halfway through a deployment.

    Raises InvalidConfiguration naming the largest variable.
    """
    sizes = {
        name: len(name)
        + (_GENERATED_NAME_BYTES if cdk.Token.is_unresolved(value) else len(value.encode()))
        for name, value in environment.items()
    }
    total = sum(sizes.values())
    if total > ENVIRONMENT_LIMIT_BYTES:
        largest = max(sizes, key=sizes.__getitem__)
        raise InvalidConfiguration(
            f"environment of {function}",
            f"takes {total} bytes, of which {largest} {sizes[largest]}",
            expected=f"at most {ENVIRONMENT_LIMIT_BYTES}, Lambda's limit: "
            "fewer or shorter entries there",
        )
