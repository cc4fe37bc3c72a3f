"""`python -m fleetcast.agent`: the same as `fleetcast-agent`."""

from fleetcast.agent.command import main

main(prog_name="fleetcast-agent")
