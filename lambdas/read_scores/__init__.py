"""The scores API: what the sweeps have written, and where to launch by it. It reads only."""
