"""The CDK app: `cdk deploy` reads cdk.json, and what it says under "fleetcast" is deployed."""

import os
import sys

import aws_cdk as cdk

from fleetcast.errors import InvalidConfiguration
from infra.asset import AssetBuildFailed, build_function_asset
from infra.config import read_config
from infra.stack import FleetcastStack


def main() -> None:
    """Synthesise the stack, or say in one line what in the configuration is wrong."""
    app = cdk.App()
    try:
        config = read_config(app.node.try_get_context("fleetcast"))
        FleetcastStack(
            app,
            "Fleetcast",
            config=config,
            function_asset=build_function_asset(config.function_platform),
            env=cdk.Environment(
                account=os.environ.get("CDK_DEFAULT_ACCOUNT"),
                region=os.environ.get("CDK_DEFAULT_REGION"),
            ),
        )
    except InvalidConfiguration as error:
        sys.exit(f"The configuration (cdk.json, context.fleetcast) is wrong: {error}")
    except AssetBuildFailed as error:
        sys.exit(str(error))
    app.synth()


if __name__ == "__main__":
    main()
