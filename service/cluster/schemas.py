"""Excluded nodes as resources of the API."""

from collections.abc import Collection

from service.cluster.exclusions import ExcludedNode
from service.core.resources import resource_of
from trainyard.contract.wire.cluster import ExcludedNodeResource, NodeFaultResource

_MAX_FAULTS = 10


def excluded_node_resource(node: ExcludedNode, visible: Collection[str] | None = None) -> ExcludedNodeResource:
    """Return an excluded node for a client.

    Args:
        visible: The ids of the jobs whose faults the caller may see; None: of all jobs.
    """
    shown = [fault for fault in node.faults if visible is None or fault.job_id in visible]
    return resource_of(
        ExcludedNodeResource,
        node,
        node=node.name,
        partitions=list(node.partitions),
        faults=[resource_of(NodeFaultResource, fault) for fault in shown[:_MAX_FAULTS]],
    )
