"""What somebody is to be told of at once."""

from typing import Any

import aws_cdk as cdk
from aws_cdk import aws_cloudwatch as cloudwatch
from constructs import Construct

from infra.config import FleetConfig

# As the functions publish them, see lambdas/score_regions/handler.py and
# lambdas/reconcile/metrics.py.
_NAMESPACE = "fleetcast"
_SWEEPS_MISSED = 3
_MINUTE_S = 60


class Alarms(Construct):
    """Alarms on the functions' metrics; they go to the configured SNS topic, if there is one."""

    def __init__(self, scope: Construct, construct_id: str, *, config: FleetConfig) -> None:
        super().__init__(scope, construct_id)
        self._topic = config.alarm_topic_arn
        sweep = cdk.Duration.minutes(config.sweep_minutes)
        self._alarm(
            "StaleScores",
            "Regions are ranked by old scores: the sweeps fail, or don't run",
            service="score_regions",
            metric_name="OldestScoreAge",
            statistic="Maximum",
            period=int(sweep.to_seconds()),
            evaluation_periods=_SWEEPS_MISSED,
            comparison_operator="GreaterThanThreshold",
            threshold=_SWEEPS_MISSED * sweep.to_seconds(),
            # No sweep at all publishes nothing.
            treat_missing_data="breaching",
        )
        self._alarm(
            "NoReconcile",
            "Nobody compares the records with what nodes run: reconcile fails, or doesn't run",
            service="reconcile",
            metric_name="RunsCompleted",
            statistic="Sum",
            period=5 * _MINUTE_S,
            evaluation_periods=1,
            comparison_operator="LessThanThreshold",
            threshold=1,
            treat_missing_data="breaching",
        )
        self._alarm(
            "UnknownInstances",
            "Instances are on nodes that don't answer",
            service="reconcile",
            metric_name="UnknownInstances",
            statistic="Maximum",
            period=_MINUTE_S,
            evaluation_periods=5,
            comparison_operator="GreaterThanThreshold",
            threshold=0,
            # A minute without a run says nothing; that there are none has an alarm of its own.
            treat_missing_data="ignore",
        )
        for name, description in (
            ("OrphansDestroyed", "Instances ran that no record knew: something launched twice"),
            ("OrphansHeldBack", "So many instances have no record that the table may be lost"),
        ):
            self._alarm(
                name,
                description,
                service="reconcile",
                metric_name=name,
                statistic="Sum",
                period=5 * _MINUTE_S,
                evaluation_periods=1,
                comparison_operator="GreaterThanThreshold",
                threshold=0,
                treat_missing_data="notBreaching",
            )

    def _alarm(self, name: str, description: str, *, service: str, **when: Any) -> None:  # noqa: ANN401 - CfnAlarm's
        # The construct of the lower level: an action of the higher one wants a topic construct.
        cloudwatch.CfnAlarm(
            self,
            name,
            alarm_description=description,
            namespace=_NAMESPACE,
            dimensions=[cloudwatch.CfnAlarm.DimensionProperty(name="service", value=service)],
            alarm_actions=[self._topic] if self._topic else None,
            **when,
        )
