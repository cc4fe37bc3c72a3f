"""The one stack: fleetcast's control plane in one AWS account and region."""

from pathlib import Path

import aws_cdk as cdk
from aws_cdk import aws_lambda as lambda_
from constructs import Construct

from infra.alarms import Alarms
from infra.api import Ec2Api
from infra.config import FleetConfig
from infra.functions import Functions
from infra.schedules import Reconciles, Sweeps
from infra.tables import Tables


class FleetcastStack(cdk.Stack):
    """Tables, functions, the EC2 endpoint and the schedules.

    function_asset: the folder of the functions' code, see infra.asset.
    Raises InvalidConfiguration if the configuration makes a function that Lambda would refuse.
    """

    def __init__(
        self,
        scope: Construct,
        construct_id: str,
        *,
        config: FleetConfig,
        function_asset: Path,
        env: cdk.Environment | None = None,
    ) -> None:
        super().__init__(
            scope,
            construct_id,
            env=env,
            description="fleetcast: an EC2-compatible control plane for your own nodes",
            termination_protection=config.retain_tables,
        )
        tables = Tables(self, "Tables", retain=config.retain_tables)
        functions = Functions(
            self,
            "Functions",
            config=config,
            code=lambda_.Code.from_asset(str(function_asset)),
            tables=tables,
        )
        api = Ec2Api(
            self,
            "Api",
            config=config,
            run_instances=functions.run_instances,
            read_api=functions.read_api,
        )
        Sweeps(
            self,
            "Sweeps",
            score_regions=functions.score_regions,
            every_minutes=config.sweep_minutes,
        )
        Reconciles(self, "Reconciles", reconcile=functions.reconcile)
        Alarms(self, "Alarms", config=config)
        outputs = {
            "ApiUrl": api.url,
            "RegionScoresTable": tables.region_scores.table_name,
            "FleetTable": tables.fleet.table_name,
            "RunInstancesFunction": functions.run_instances.function_name,
            "ScoreRegionsFunction": functions.score_regions.function_name,
            "ReadApiFunction": functions.read_api.function_name,
            "ReconcileFunction": functions.reconcile.function_name,
        }
        for name, value in outputs.items():
            cdk.CfnOutput(self, name, value=value)
