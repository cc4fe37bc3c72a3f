"""The endpoint: a regional REST API in front of run_instances and read_api.

Callers sign for IAM. The EC2 Query protocol has one path, POSTed to; some clients use GET. So has
each region, for what is to happen there only. Below /v1 is what EC2 has no words for, as JSON.
"""

import json

from aws_cdk import aws_apigateway as apigateway
from aws_cdk import aws_lambda as lambda_
from constructs import Construct

from fleetcast.read_answers import LAUNCH_PATH, RECOMMENDATION_PATH, SCORES_PATH
from infra.config import FleetConfig
from infra.gateway_errors import answer_as_ec2_does
from infra.log_groups import create_log_group

# As the function reads it, see lambdas/run_instances/handler.py.
_REGION_PATH = "/regions/{region}"
# Who asked and how it went. Never the body or the query string: they hold user data.
_ACCESS_LOG_FIELDS = {
    "request_id": "$context.requestId",
    "caller": "$context.identity.userArn",
    "source_ip": "$context.identity.sourceIp",
    "method": "$context.httpMethod",
    "path": "$context.path",
    "status": "$context.status",
    "latency_ms": "$context.responseLatency",
    "integration_latency_ms": "$context.integrationLatency",
    "integration_status": "$context.integrationStatus",
    "error": "$context.error.responseType",
}


class Ec2Api(Construct):
    """The API and its stage. url: the endpoint for EC2 clients."""

    def __init__(
        self,
        scope: Construct,
        construct_id: str,
        *,
        config: FleetConfig,
        run_instances: lambda_.Function,
        read_api: lambda_.Function,
    ) -> None:
        super().__init__(scope, construct_id)
        access_log = create_log_group(self, "AccessLog", retention_days=config.log_retention_days)
        api = apigateway.RestApi(
            self,
            "Rest",
            rest_api_name="fleetcast",
            description="EC2-compatible API of fleetcast",
            endpoint_types=[apigateway.EndpointType.REGIONAL],
            default_method_options=apigateway.MethodOptions(
                authorization_type=apigateway.AuthorizationType.IAM
            ),
            # API Gateway writes access logs only in accounts that gave it a role for that.
            cloud_watch_role=True,
            deploy_options=apigateway.StageOptions(
                throttling_rate_limit=config.api_rate_per_s,
                throttling_burst_limit=config.api_burst,
                metrics_enabled=True,
                access_log_destination=apigateway.LogGroupLogDestination(access_log),
                access_log_format=apigateway.AccessLogFormat.custom(json.dumps(_ACCESS_LOG_FIELDS)),
            ),
        )
        # The construct's own output of the URL; the stack's has a name that stays.
        api.node.try_remove_child("Endpoint")
        integration = apigateway.LambdaIntegration(run_instances, allow_test_invoke=False)
        for path in ("/", _REGION_PATH):
            for method in ("POST", "GET"):
                api.root.resource_for_path(path).add_method(method, integration)
        reading = apigateway.LambdaIntegration(read_api, allow_test_invoke=False)
        for path in (SCORES_PATH, RECOMMENDATION_PATH, LAUNCH_PATH):
            api.root.resource_for_path(path).add_method("GET", reading)
        answer_as_ec2_does(api)
        self.url = api.url
