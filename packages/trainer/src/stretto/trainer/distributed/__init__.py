"""Who this process is among the others of the run, and how they talk.

:class:`~stretto.trainer.distributed.topology.Topology` is the one answer to the first question;
:mod:`~stretto.trainer.distributed.process_group` starts and ends the second.
"""

from __future__ import annotations

from stretto.trainer.distributed.outcome import share_outcome
from stretto.trainer.distributed.process_group import destroy_dist, initialize_dist
from stretto.trainer.distributed.topology import Topology

__all__ = ["Topology", "destroy_dist", "initialize_dist", "share_outcome"]
