"""What a function of tensors did, written down."""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import Tensor, fx


@dataclass
class Recording:
    """A graph, and the constants that it reads by name.

    ``fx.GraphModule`` is that too, but writes and compiles Python whenever it is made.
    """

    graph: fx.Graph = field(default_factory=fx.Graph)
    constants: dict[str, Tensor] = field(default_factory=dict)

    def copy(self) -> Recording:
        """One that can be rewritten; constants are shared."""
        graph = fx.Graph()
        graph.output(graph.graph_copy(self.graph, {}))
        return Recording(graph, dict(self.constants))
