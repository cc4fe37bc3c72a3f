"""The one-command local stack: nats-server, the AWS emulator, the deployed app, agents."""
