"""The operator's command line. Needs the extra `cli` (boto3, click, rich)."""
