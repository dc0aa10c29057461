"""Commands whose options are the fields of dataclasses, so that long lists are declared once and travel as one object.

A group of options is a dataclass with ``Annotated`` fields, as typer reads them::

    @dataclass(frozen=True)
    class Prices:
        c_e: Annotated[float, typer.Option("--c-e", help="Price of a request.")] = 0.1


    @takes_groups
    def command(prices: Prices) -> None: ...
"""

import functools
from collections.abc import Callable
from dataclasses import MISSING, fields
from inspect import Parameter, Signature
from typing import Any, get_type_hints


def takes_groups(command: Callable[..., None]) -> Callable[..., None]:
    """Return a command for typer whose options are the fields of the groups that this one takes, in their order."""
    groups = {name: group for name, group in get_type_hints(command).items() if name != "return"}
    parameters = []
    for group in groups.values():
        hints = get_type_hints(group, include_extras=True)
        for field in fields(group):
            default = Parameter.empty if field.default is MISSING else field.default
            parameters.append(
                Parameter(field.name, Parameter.KEYWORD_ONLY, default=default, annotation=hints[field.name])
            )

    @functools.wraps(command)
    def called(**values: Any) -> None:
        command(**{name: group(**{f.name: values[f.name] for f in fields(group)}) for name, group in groups.items()})

    called.__signature__ = Signature(parameters)  # type: ignore[attr-defined]
    called.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return called
