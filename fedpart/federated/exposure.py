"""Exposure: where a cohort has so few contributors that its defence bears no hostile one."""

from __future__ import annotations

from fedpart.federated.protocol import Protocol


def contributors(protocol: Protocol) -> dict[str, float]:
    """How many clients of a cohort send each partition, as ``w_j``, and ``psi``'s gradient, on average."""
    found: dict[str, float] = {}
    for client, count in protocol.kinds.values():
        jobs = protocol.plan(client, 1)
        sent = [f"w_{job.partition}" for job in jobs if job.partition is not None]
        sent += ["psi"] if any(job.psi for job in jobs) else []
        for name in sent:
            more = protocol.settings.cohort * count / protocol.settings.clients
            found[name] = found.get(name, 0.0) + more
    return dict(sorted(found.items()))


def exposed(protocol: Protocol) -> str:
    """A sentence on what one hostile client of a usual cohort can move; empty: nothing, or no defence."""
    if not protocol.settings.defended:
        return ""
    defended, few = protocol.settings.defend(), contributors(protocol)
    named = {name: n for name, n in few.items() if defended.bears(round(n)) == 0}
    if not named:
        return ""
    numbers = ", ".join(f"{name} from {n:.3g}" for name, n in named.items())
    return (
        f"A round has {numbers} clients on average, of whom the defence bears no hostile one: ask for a "
        f"larger cohort."
    )
