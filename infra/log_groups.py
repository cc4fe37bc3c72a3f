"""Log groups that forget after a while."""

from typing import cast

import aws_cdk as cdk
from aws_cdk import aws_logs as logs
from constructs import Construct


def create_log_group(scope: Construct, construct_id: str, *, retention_days: int) -> logs.LogGroup:
    """Make a log group that goes with its stack. retention_days: one of LogRetentionDays."""
    group = logs.LogGroup(scope, construct_id, removal_policy=cdk.RemovalPolicy.DESTROY)
    # The construct takes an enum of names; the resource, and the configuration, take days.
    cast("logs.CfnLogGroup", group.node.default_child).retention_in_days = retention_days
    return group
