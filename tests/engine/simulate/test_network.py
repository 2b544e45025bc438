"""Routes of random networks against a search that visits all places."""

from collections import deque

from hypothesis import given
from hypothesis import strategies as st

from runner.engine.simulate.network import Link, Network, Route
from runner.system.schema import Violation

PLACES = "abcdef"


@st.composite
def networks(draw: st.DrawFn) -> Network:
    """Draw a network whose links join random places, with one or two directions."""
    links: list[Link] = []
    neighbours: dict[str, list[tuple[str, int]]] = {}
    for one, other in draw(st.lists(st.tuples(*[st.sampled_from(PLACES)] * 2), max_size=9)):
        shared = draw(st.booleans())
        for source, target in ((one, other), (other, one)) if one != other else ():
            if not shared or source == one:
                links.append(Link(f"{source}{target}", 1.0, draw(st.floats(0.0, 1.0))))
            neighbours.setdefault(source, []).append((target, len(links) - 1))
    return Network(tuple(links), {place: place for place in PLACES}, neighbours)


def searched(network: Network, start: str, end: str) -> Route | None:
    """Return the first route with the fewest links, or None."""
    routes, waiting = {start: Route((), 0.0)}, deque([start])
    while waiting:
        here = waiting.popleft()
        for there, number in network.neighbours.get(here, ()):
            if there not in routes:
                before, latency_s = routes[here], network.links[number].latency_s
                routes[there] = Route((*before.links, number), before.latency_s + latency_s)
                waiting.append(there)
    return routes.get(end)


def found(network: Network, start: str, end: str) -> Route | None:
    """Return the route of a network, or None if the network refuses the places."""
    try:
        return network.route(start, end)
    except Violation:
        return None


@given(networks())
def test_routes_have_the_fewest_links_and_are_listed_first(network: Network) -> None:
    for start in PLACES:
        for end in PLACES:
            assert found(network, start, end) == searched(network, start, end)
