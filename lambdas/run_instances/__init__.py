"""The EC2 API function: RunInstances and the instance actions."""
