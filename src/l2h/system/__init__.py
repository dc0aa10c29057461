"""The system: the verbs of the workflow, and what they fit, save and load."""

from l2h.fitted import Calibration, FittedSystem
from l2h.system.help_system import HelpSystem
from l2h.system.saving import load

__all__ = ["Calibration", "FittedSystem", "HelpSystem", "load"]
