"""The system: the verbs of the workflow, and what they fit, save and load."""

from l2h.system.help import HelpSystem, load

__all__ = ["HelpSystem", "load"]
