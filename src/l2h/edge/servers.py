"""The servers of an edge client: how each is asked, its circuit, its requests and its counters."""

import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from l2h.bundle import Manifest
from l2h.edge import reasons
from l2h.edge.breaker import Admission, Breaker
from l2h.edge.dispatch import Dispatcher
from l2h.edge.options import EdgeOptions, EdgeSettingsError
from l2h.edge.reporting import News, Reporter
from l2h.edge.stats import Recorder, ServerStats

#: An address, or a function that is asked in its place.
Address = str | Callable[..., Any]
#: Of the time left, what is kept for the next best server: so many times what its slowest answers took lately, at least
#: and at most these parts, and this part where it has not answered yet. What takes longer would be too late anyhow.
_TIMES, _LEAST, _MOST, _UNKNOWN = 2.0, 0.1, 0.5, 0.25
#: What a server itself keeps: so many times what its own slowest answers took lately.
_OWN_TIMES = 1.25
#: Options that may be given by the names of servers, with the values of those that are not named.
_BY_NAME = {"key": None, "model": None, "input_name": "x", "output_name": "scores", "binary": True, "verify_tls": True}


class AskedServer:
    """One server of an edge client; without an address it is never asked."""

    def __init__(self, name: str, options: EdgeOptions, manifest: Manifest, failures: int, rest: float) -> None:
        self.name, self.options = name, options
        self.breaker = Breaker(failures, rest, f"server {name!r}" if manifest.named else "the server")
        self.recorder = Recorder()
        self.dispatcher = Dispatcher(options, manifest, self.recorder)
        self.has_address = options.server is not None

    def unable(self, until: float) -> str | None:
        """Return the reason why it cannot be asked at all, None where it can."""
        if not self.has_address:
            return reasons.NO_SERVER
        if time.monotonic() >= until:
            return reasons.DEADLINE
        return reasons.CIRCUIT_OPEN if self.breaker.blocked() else None

    def admit(self, inputs: int) -> list[Admission]:
        """Return admissions for so many inputs, or fewer: each is for a request, and must be reported."""
        return self.breaker.admit(-(-inputs // self.options.max_batch))

    def reserve(self, left: float) -> float:
        """Return the seconds, of those left, that another server must leave for this one to be asked next."""
        expected = self.dispatcher.expected
        if not expected:
            return _UNKNOWN * left
        if expected > _MOST * left:
            return 0.0
        return min(max(_TIMES * expected, _LEAST * left), _MOST * left)

    def spare(self, left: float) -> float:
        """Return the seconds, of those left, that it can spare for another: all but what its own answers take."""
        needed = self.dispatcher.slowest
        return max(0.0, left - _OWN_TIMES * needed) if needed <= left else left

    def stats(self, *last: int) -> ServerStats:
        """Return its counters, with percentiles over so many round trips."""
        return self.recorder.stats(self.breaker.state, self.breaker.opened, *last)


def make_servers(
    manifest: Manifest, server: Address | Mapping[str, Address] | None, failures: int, rest: float, **given: Any
) -> list[AskedServer]:
    """Return the servers of a bundle in their order; those without an address are never asked.

    ``given`` are the other arguments of :class:`EdgeOptions`, some of which may be mappings by the names of servers.
    """
    names = list(manifest.servers)
    if server is not None and not isinstance(server, Mapping) and len(names) > 1:
        each = ", ".join(f"{name!r}: ADDRESS" for name in names)
        raise EdgeSettingsError(f"the bundle has the servers {', '.join(names)}: give server={{{each}}}")
    addresses = server if isinstance(server, Mapping) else {} if server is None else {names[0]: server}
    for option, value in {"server": addresses, **given}.items():
        unknown = sorted(set(value) - set(names), key=str) if isinstance(value, Mapping) else []
        if unknown:
            raise EdgeSettingsError(f"{option}= names the server {unknown[0]!r}; the bundle has: {', '.join(names)}")
    out = []
    for name in names:
        address = addresses.get(name)
        own = {
            option: value.get(name, _BY_NAME[option]) if option in _BY_NAME and isinstance(value, Mapping) else value
            for option, value in given.items()
        }
        own["model"] = manifest.model_of(name) if own["model"] is None else own["model"]
        if callable(address) and len(addresses) > 1 and not isinstance(given["key"], Mapping):
            own["key"] = None  # it is for the others
        options = EdgeOptions(
            server=None if callable(address) else address,
            function=address if callable(address) else None,
            gives=manifest.servers[name].gives,
            alone=len(names) == 1,
            **own,
        )
        out.append(AskedServer(name, options, manifest, failures, rest))
    return out


def start_reports(servers: list[AskedServer], device: str, every: float, news: News) -> None:
    """Tell every server that has an address of this device from now on."""
    told = [each for each in servers if each.has_address and each.options.function is None]
    if not told:
        raise EdgeSettingsError("report= needs a server with an address: give server=")
    for each in told:
        each.dispatcher.transport.reporter = Reporter(device, every, news, each.name)
        with suppress(RuntimeError):  # no thread could be started: reports ride on requests alone
            each.dispatcher.loop.submit(each.dispatcher.transport.report())
