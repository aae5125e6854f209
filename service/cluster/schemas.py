"""Excluded nodes as resources of the API."""

from service.cluster.exclusions import ExcludedNode
from service.db.models import NodeFault
from trainyard.contract.wire.cluster import ExcludedNodeResource, NodeFaultResource

_MAX_FAULTS = 10


def excluded_node_resource(node: ExcludedNode, owner: str | None = None) -> ExcludedNodeResource:
    """Return an excluded node for a client.

    Args:
        owner: The user whose jobs alone the caller may see; None: all jobs.
    """
    shown = [fault for fault in node.faults if owner in (None, fault.created_by)]
    return ExcludedNodeResource(
        node=node.name,
        partitions=list(node.partitions),
        since=node.since,
        until=node.until,
        jobs=node.jobs,
        cause=node.cause,
        faults=[_fault_resource(fault) for fault in shown[:_MAX_FAULTS]],
        drain_command=node.drain_command,
    )


def _fault_resource(fault: NodeFault) -> NodeFaultResource:
    names = NodeFaultResource.model_fields.keys()
    return NodeFaultResource.model_validate({name: getattr(fault, name) for name in names})
