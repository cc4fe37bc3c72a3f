"""What runs by the clock."""

import aws_cdk as cdk
from aws_cdk import aws_lambda as lambda_
from aws_cdk import aws_lambda_destinations as destinations
from aws_cdk import aws_scheduler as scheduler
from aws_cdk import aws_scheduler_targets as targets
from aws_cdk import aws_sqs as sqs
from constructs import Construct

# A node, or a launch, is in doubt for that long.
_RECONCILE_EVERY = cdk.Duration.minutes(1)


class Sweeps(Construct):
    """score_regions every few minutes, with what failed kept for two weeks.

    No concurrency is reserved for it: an account's first quota leaves none to reserve, and sweeps
    that overlap are harmless, for an older one never overwrites a newer one.
    """

    def __init__(
        self,
        scope: Construct,
        construct_id: str,
        *,
        score_regions: lambda_.Function,
        every_minutes: int,
    ) -> None:
        super().__init__(scope, construct_id)
        interval = cdk.Duration.minutes(every_minutes)
        self.failed = sqs.Queue(
            self,
            "Failed",
            encryption=sqs.QueueEncryption.SQS_MANAGED,
            enforce_ssl=True,
            retention_period=cdk.Duration.days(14),
        )
        # A sweep that is late by a whole interval has been overtaken by the next one.
        scheduler.Schedule(
            self,
            "Schedule",
            schedule=scheduler.ScheduleExpression.rate(interval),
            description="Scores fleetcast's regions",
            target=targets.LambdaInvoke(
                score_regions,
                retry_attempts=2,
                max_event_age=interval,
                dead_letter_queue=self.failed,
            ),
        )
        # The scheduler's part ends when Lambda has taken the event; this is for a sweep that
        # fails while it runs.
        score_regions.configure_async_invoke(
            retry_attempts=1,
            max_event_age=interval,
            on_failure=destinations.SqsDestination(self.failed),
        )


class Reconciles(Construct):
    """Reconcile every minute.

    A run that failed is not repeated, nor kept: the next one finds what it left, and an alarm tells
    when none succeeds. Runs that overlap are harmless.
    """

    def __init__(self, scope: Construct, construct_id: str, *, reconcile: lambda_.Function) -> None:
        super().__init__(scope, construct_id)
        scheduler.Schedule(
            self,
            "Schedule",
            schedule=scheduler.ScheduleExpression.rate(_RECONCILE_EVERY),
            description="Compares fleetcast's records with what its nodes run",
            target=targets.LambdaInvoke(
                reconcile, retry_attempts=0, max_event_age=_RECONCILE_EVERY
            ),
        )
        reconcile.configure_async_invoke(retry_attempts=0, max_event_age=_RECONCILE_EVERY)
