"""The deployment's configuration: the key "fleetcast" of the CDK context in cdk.json.

Checked whole at synth, so that a mistake is told before anything is deployed. What the functions
are told is checked by their own settings; here are the keys that only the deployment reads.
"""

from typing import Annotated, Literal, get_args

import msgspec

from fleetcast.configuration import read_struct
from fleetcast.errors import InvalidConfiguration
from fleetcast.instance_types import Catalogue, InstanceType, ec2_catalogue
from lambdas.settings import LaunchOptions, Region, RegionName, ScoringOptions, check_regions

# The services that the functions call. The asset carries only these services' models, the
# roles allow only their actions, and only these can be given an endpoint of their own.
AwsService = Literal[
    "cloudformation", "cloudwatch", "dynamodb", "ec2", "pricing", "secretsmanager", "sqs"
]
AWS_SERVICES: tuple[AwsService, ...] = get_args(AwsService)

LogRetentionDays = Literal[1, 3, 5, 7, 14, 30, 60, 90, 120, 150, 180, 365, 400, 545, 731]
FunctionPlatform = Literal["lambda", "local"]

_SMALLEST_POOL = 3  # fewer types get a low spot placement score, whatever capacity there is

_Endpoint = Annotated[
    str, msgspec.Meta(pattern=r"^https?://[^/\s]", description="an http:// or https:// URL")
]
_TopicArn = Annotated[
    str, msgspec.Meta(pattern=r"^arn:[a-z-]+:sns:", description="the ARN of an SNS topic")
]
_Rate = Annotated[int, msgspec.Meta(ge=1, le=10_000, description="a whole number, 1 to 10000")]


class Vpc(msgspec.Struct, frozen=True, kw_only=True):
    """Where the functions' network interfaces stand.

    From there they need a way to every region's NATS, and to the AWS APIs (a NAT gateway or
    interface endpoints).
    """

    subnet_ids: tuple[
        Annotated[str, msgspec.Meta(pattern="^subnet-", description="a subnet id, subnet-…")], ...
    ]
    security_group_ids: tuple[
        Annotated[str, msgspec.Meta(pattern="^sg-", description="a security group id, sg-…")], ...
    ]

    def __post_init__(self) -> None:
        """Refuse empty lists, which Lambda reads as "no VPC"."""
        for key, ids in (
            ("subnet_ids", self.subnet_ids),
            ("security_group_ids", self.security_group_ids),
        ):
            if not ids:
                raise InvalidConfiguration(key, "is empty", expected="at least one id")


class FleetConfig(msgspec.Struct, frozen=True, kw_only=True):
    """One fleet's deployment.

    regions: in no particular order. default_region: where launches go first while nothing is
    known of any region. instance_types: types that the fleet defines beside EC2's.
    sweep_minutes: how often regions are scored. api_rate_per_s, api_burst: API Gateway's
    throttle. alarm_topic_arn: the SNS topic that alarms go to. retain_tables: refuse to delete the
    tables, or the stack with them. function_platform: what the functions run on; "local" is an
    emulator that runs them on this very Python. aws_endpoint_urls: endpoints that the functions
    use in place of AWS's public ones, e.g. interface endpoints without private DNS.
    """

    regions: tuple[Region, ...]
    default_region: RegionName
    instance_types: tuple[InstanceType, ...] = ()
    launching: LaunchOptions = LaunchOptions()
    scoring: ScoringOptions = ScoringOptions()
    sweep_minutes: Annotated[
        int, msgspec.Meta(ge=1, le=60, description="a whole number of minutes, 1 to 60")
    ] = 5
    api_rate_per_s: _Rate = 50
    api_burst: _Rate = 100
    retain_tables: bool = True
    log_retention_days: LogRetentionDays = 30
    alarm_topic_arn: _TopicArn | None = None
    vpc: Vpc | None = None
    function_platform: FunctionPlatform = "lambda"
    aws_endpoint_urls: dict[AwsService, _Endpoint] = {}

    def __post_init__(self) -> None:
        """Check what only shows when keys stand side by side."""
        check_regions(self.regions, default_region=self.default_region)
        _check_scored_types(self.scoring, ec2_catalogue().with_types(self.instance_types))
        _check_pools(self.scoring)
        if self.launching.max_score_age_s < 60 * self.sweep_minutes:
            raise InvalidConfiguration(
                "launching.max_score_age_s",
                f"{self.launching.max_score_age_s:g} s is less than a sweep's interval, "
                f"so that scores would be stale between sweeps",
                expected=f"at least {60 * self.sweep_minutes}",
            )


def _check_scored_types(scoring: ScoringOptions, catalogue: Catalogue) -> None:
    for at, name in enumerate(scoring.scored_instance_types):
        if name not in catalogue:
            raise InvalidConfiguration(
                f"scoring.scored_instance_types[{at}]",
                f"is {name!r}",
                expected="one of EC2's instance types or of the fleet's own",
            )


def _check_pools(scoring: ScoringOptions) -> None:
    catalogue = ec2_catalogue()
    for name, pool in scoring.spot_placement_pools.items():
        key = f"scoring.spot_placement_pools.{name}"
        if name not in scoring.scored_instance_types:
            raise InvalidConfiguration(
                key, f"{name!r} is not scored", expected="one of scoring.scored_instance_types"
            )
        if len(set(pool)) < _SMALLEST_POOL:
            raise InvalidConfiguration(
                key,
                f"has {len(set(pool))}",
                expected=f"at least {_SMALLEST_POOL} different instance types",
            )
        for at, other in enumerate(pool):
            # AWS refuses the whole pool.
            if other not in catalogue:
                raise InvalidConfiguration(
                    f"{key}[{at}]", f"is {other!r}", expected="one of EC2's instance types"
                )


def read_config(context: object) -> FleetConfig:
    """Read the value of the context key "fleetcast".

    Raises InvalidConfiguration with the key, e.g. ``regions[1].nats_url``.
    """
    if context is None:
        raise InvalidConfiguration(
            "fleetcast", "is missing from the CDK context", expected="it in cdk.json"
        )
    return read_struct(context, FleetConfig)
