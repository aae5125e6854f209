"""Where torchrun's word on how a start of the ranks ended lies. Imports next to nothing: torchrun waits for it."""

from pathlib import Path

from trainyard.contract.layout import AttemptLayout


def rank_exits_file(layout: AttemptLayout, node: int, execution: int) -> Path:
    """How the node's ranks of an execution ended, as torchrun saw it."""
    return layout.errors / f"torchrun-{execution}-{node}.json"


def rank_exits_files(layout: AttemptLayout, execution: int) -> list[Path]:
    """Those of all nodes."""
    return sorted(layout.errors.glob(f"torchrun-{execution}-*.json"))
