"""Whether a node has what its agent needs, and how to mend what it lacks. Changes nothing.

`host_checks` looks at the host, `connection_checks` at the way to the region's NATS, and
`examination` puts them in order. Each finding says what was measured.
"""
