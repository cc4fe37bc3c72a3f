"""The scheduled function that holds the records against what nodes really run."""
