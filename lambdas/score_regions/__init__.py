"""The scheduled function that reads each region's signals and writes their scores."""
