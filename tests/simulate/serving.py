"""What tests ask of servers of their own: a run, and what it amounts to, with nothing filled in."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pipewave.published.answers import Deployed, Served, served
from pipewave.simulate.pools import Pools
from pipewave.simulate.report import Limit
from pipewave.simulate.server import Server
from pipewave.simulate.simulation import Record
from pipewave.simulate.traffic import Traffic


def serve(server: Server | Pools, traffic: Traffic, limits: Sequence[Limit] = (), **how: Any) -> Served:
    """Serve requests."""
    return served(Deployed(pools(server), traffic, ()), limits, **({"interval": False} | how))


def recorded(server: Server | Pools, traffic: Traffic, **how: Any) -> Record:
    """What happens to each request."""
    return pools(server).record(traffic, **how)


def pools(server: Server | Pools) -> Pools:
    """As many equal engines as the set-up says."""
    return server if isinstance(server, Pools) else Pools((server,), (server.setup.replicas,))
