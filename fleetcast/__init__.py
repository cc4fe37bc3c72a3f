"""fleetcast: an EC2-compatible, serverless control plane for your own nodes."""

__version__ = "0.1.0"
