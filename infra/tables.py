"""The two tables: what is known of regions, and what runs on the fleet."""

import aws_cdk as cdk
from aws_cdk import aws_dynamodb as dynamodb
from constructs import Construct

from lambdas.live_index import LIVE_ATTRIBUTES, LIVE_INDEX, LIVE_KEY


class Tables(Construct):
    """RegionScores and Fleet, both with keys pk and sk and the TTL attribute expires_at.

    Fleet has an index of what lives. live_index_arn: its own, which no grant on the table holds.
    """

    def __init__(self, scope: Construct, construct_id: str, *, retain: bool) -> None:
        super().__init__(scope, construct_id)
        self.region_scores = self._table("RegionScores", retain=retain)
        self.fleet = self._table("Fleet", retain=retain)
        self.fleet.add_global_secondary_index(
            index_name=LIVE_INDEX,
            partition_key=dynamodb.Attribute(name=LIVE_KEY, type=dynamodb.AttributeType.STRING),
            sort_key=dynamodb.Attribute(name="sk", type=dynamodb.AttributeType.STRING),
            projection_type=dynamodb.ProjectionType.INCLUDE,
            non_key_attributes=list(LIVE_ATTRIBUTES),
        )
        self.live_index_arn = f"{self.fleet.table_arn}/index/{LIVE_INDEX}"

    def _table(self, construct_id: str, *, retain: bool) -> dynamodb.TableV2:
        return dynamodb.TableV2(
            self,
            construct_id,
            partition_key=dynamodb.Attribute(name="pk", type=dynamodb.AttributeType.STRING),
            sort_key=dynamodb.Attribute(name="sk", type=dynamodb.AttributeType.STRING),
            billing=dynamodb.Billing.on_demand(),
            time_to_live_attribute="expires_at",
            point_in_time_recovery_specification=dynamodb.PointInTimeRecoverySpecification(
                point_in_time_recovery_enabled=True
            ),
            deletion_protection=retain,
            removal_policy=cdk.RemovalPolicy.RETAIN if retain else cdk.RemovalPolicy.DESTROY,
        )
