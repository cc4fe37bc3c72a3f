"""Guests as QEMU processes, one a guest, each with a folder of its own.

A guest outlives the agent: what an agent must know of it stands in its folder or is asked of its
QEMU. docs/adr/0012 says why it is done so.
"""
