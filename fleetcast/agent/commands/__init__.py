"""The commands of `fleetcast-agent`, each in a module of its own."""
