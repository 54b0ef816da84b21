"""Places in a graph of operators: ports, named by node, number and side."""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["Location", "Source", "Target"]


class Source(NamedTuple):
    """An output port: messages leave a node here, and capabilities are held here.

    Node 0 is the outside of the graph: its sources are the graph's inputs.

    Examples
    --------
    >>> Source(node=3, port=0).location
    Location(node=3, port=0, is_target=False)
    """

    node: int
    port: int

    @property
    def location(self) -> Location:
        """The same place as a `Location`."""
        return Location(self.node, self.port, is_target=False)


class Target(NamedTuple):
    """An input port: messages wait here until their node consumes them.

    Node 0 is the outside of the graph: its targets are the graph's outputs.

    Examples
    --------
    >>> Target(node=3, port=0).location
    Location(node=3, port=0, is_target=True)
    """

    node: int
    port: int

    @property
    def location(self) -> Location:
        """The same place as a `Location`."""
        return Location(self.node, self.port, is_target=True)


class Location(NamedTuple):
    """A port of either side.

    Locations of one node sort with its sources before its targets; nothing depends on it.

    Examples
    --------
    >>> str(Location(node=3, port=0, is_target=True))
    'target (3, 0)'
    """

    node: int
    port: int
    is_target: bool

    def __str__(self) -> str:
        """Return side, node and port, as messages show them."""
        return f"{'target' if self.is_target else 'source'} ({self.node}, {self.port})"
