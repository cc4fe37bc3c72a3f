"""The functions that run on AWS Lambda, and what they share."""
