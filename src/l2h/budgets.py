"""What a rejector may cost the device: how a budget is written. No torch here."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from l2h.errors import SettingsError

#: The budget of a rejector whose size nobody names: as much as the client.
DEFAULT_BUDGET = 1.0
_FACTORS = {"k": 1e3, "M": 1e6, "G": 1e9}
_SECONDS = {"us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0}
_HIGHEST = 1000.0  # times the client; what is written beyond it was meant as multiply-adds


@dataclass(frozen=True)
class Budget:
    """A bound on the work of a rejector for one input.

    Example:
        >>> Budget.parse("200k")
        Budget(value=200000.0, unit='multiply-adds')
        >>> str(Budget.parse(0.3)), str(Budget.parse("50us"))
        ('0.3 times the client', '50 us')
    """

    value: float  # the number
    unit: str  # of what: ``client`` (multiples of the client's multiply-adds), ``multiply-adds`` or ``seconds``

    @classmethod
    def parse(cls, given: Budget | float | str) -> Budget:
        """Return the budget that a number (times the client) or a text (``0.3``, ``200k``, ``50us``) stands for."""
        if isinstance(given, Budget):
            return given
        found = re.fullmatch(r"\s*([0-9.]+(?:[eE][+-]?[0-9]+)?)\s*(x|k|M|G|us|µs|ms|s)?\s*", str(given))
        try:
            value = float(found[1]) if found and not isinstance(given, bool) else math.nan
        except ValueError:
            value = math.nan
        unit = (found[2] or "x") if found else ""
        if not math.isfinite(value) or (unit in _SECONDS and not value):
            raise SettingsError(
                f"budget={given!r} is none: give 0.3 (times the client's multiply-adds), 200k or 2M (multiply-adds), "
                "or 50us (time on this machine)"
            )
        if unit in _SECONDS:
            return cls(value * _SECONDS[unit], "seconds")
        if unit in _FACTORS:
            return cls(value * _FACTORS[unit], "multiply-adds")
        if value > _HIGHEST:
            raise SettingsError(f"budget={given!r} is {value:g} times the client: write {value / 1e3:g}k multiply-adds")
        return cls(value, "client")

    def __str__(self) -> str:
        if self.unit == "client":
            return f"{self.value:g} times the client"
        return f"{self.value * 1e6:g} us" if self.unit == "seconds" else f"{self.value:g} multiply-adds"
