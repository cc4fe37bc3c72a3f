"""What somebody is to be told of at once."""

import aws_cdk as cdk
from aws_cdk import aws_cloudwatch as cloudwatch
from constructs import Construct

from infra.config import FleetConfig

# As the functions publish them, see lambdas/score_regions/handler.py.
_NAMESPACE = "fleetcast"
_SWEEPS_MISSED = 3


class Alarms(Construct):
    """Alarms on the functions' metrics; they go to the configured SNS topic, if there is one."""

    def __init__(self, scope: Construct, construct_id: str, *, config: FleetConfig) -> None:
        super().__init__(scope, construct_id)
        sweep = cdk.Duration.minutes(config.sweep_minutes)
        # The construct of the lower level: an action of the higher one wants a topic construct.
        cloudwatch.CfnAlarm(
            self,
            "StaleScores",
            alarm_description="Regions are ranked by old scores: the sweeps fail, or don't run",
            namespace=_NAMESPACE,
            metric_name="OldestScoreAge",
            dimensions=[
                cloudwatch.CfnAlarm.DimensionProperty(name="service", value="score_regions")
            ],
            statistic="Maximum",
            period=int(sweep.to_seconds()),
            evaluation_periods=_SWEEPS_MISSED,
            comparison_operator="GreaterThanThreshold",
            threshold=_SWEEPS_MISSED * sweep.to_seconds(),
            # No sweep at all publishes nothing.
            treat_missing_data="breaching",
            alarm_actions=[config.alarm_topic_arn] if config.alarm_topic_arn else None,
        )
