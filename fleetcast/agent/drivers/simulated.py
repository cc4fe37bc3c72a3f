"""A driver whose guests are files: real in every respect but that nothing runs in them.

A guest outlives the agent, as a real one does: its file stays until it is destroyed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fleetcast.agent.drivers import BootFailed

if TYPE_CHECKING:
    from pathlib import Path

    from fleetcast.agent.drivers import Guest


class SimulatedDriver:
    """Keeps one empty file for each running guest in `folder`."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder

    async def boot(self, guest: Guest) -> None:
        """Mark the guest as running."""
        try:
            (self._folder / guest.instance_id).touch()
        except OSError as problem:
            raise BootFailed(f"can't mark the guest as running: {problem.strerror}") from problem

    async def destroy(self, instance_id: str) -> None:
        """Forget the guest."""
        (self._folder / instance_id).unlink(missing_ok=True)

    async def alive(self) -> frozenset[str]:
        """Return the ids of the guests that run."""
        return frozenset(path.name for path in self._folder.iterdir())
