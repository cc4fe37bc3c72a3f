"""The CDK app: what is deployed, from one configuration."""
