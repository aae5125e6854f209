"""Excluded nodes as resources of the API."""

from collections.abc import Collection

from service.cluster.exclusions import ExcludedNode
from service.db.models import NodeFault
from trainyard.contract.wire.cluster import ExcludedNodeResource, NodeFaultResource

_MAX_FAULTS = 10


def excluded_node_resource(node: ExcludedNode, visible: Collection[str] | None = None) -> ExcludedNodeResource:
    """Return an excluded node for a client.

    Args:
        visible: The ids of the jobs whose faults the caller may see; None: of all jobs.
    """
    shown = [fault for fault in node.faults if visible is None or fault.job_id in visible]
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
