"""Exchange of captures with the real Timely and Differential Dataflow: files, sockets, and their messages."""

from __future__ import annotations
