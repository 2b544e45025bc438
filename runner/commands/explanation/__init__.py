"""The text of ``runner explain``. Read ``text`` first, which puts the parts together:

``layers``, ``memory``, ``devices`` and ``wires``: parameters and FLOPs, memory, placement, bytes on each link.
"""

from runner.commands.explanation.devices import training_plans
from runner.commands.explanation.layers import LayerRow, layer_rows
from runner.commands.explanation.text import explain, explain_with_memory
from runner.commands.explanation.wires import Sent, sent_text

__all__ = ["LayerRow", "Sent", "explain", "explain_with_memory", "layer_rows", "sent_text", "training_plans"]
