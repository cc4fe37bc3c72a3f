"""The read API: scores, where to launch by them, and what launches came to. It only reads."""
