"""Colours: what every picture and the report's page are drawn in, for a light page and a dark one."""

from __future__ import annotations

from collections.abc import Iterable

# After Okabe and Ito (2008): colour-blind eyes tell them apart, markers and dashes do so in grey. Each has a
# contrast of 3:1 or more to the page and its cards (WCAG 2.2, 1.4.11), as those of DARK on a dark page.
COLOURS = ("#0072B2", "#C75100", "#00875F", "#B8569A", "#9A6B00", "#1789B8", "#000000", "#767676")
DARK = ("#4AA3DF", "#F08A3C", "#2BB88A", "#DE8FC0", "#E0B03A", "#7CCBEF", "#FFFFFF", "#9A9A9A")
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
THEMES = {  # of the page: text, quiet text, lines, background, background of cards
    "light": {"ink": "#1e1f21", "soft": "#5c6066", "line": "#d9dce0", "page": "#ffffff", "card": "#f6f7f9"},
    "dark": {"ink": "#e6e7e9", "soft": "#a3a8af", "line": "#3a3d42", "page": "#17181a", "card": "#202225"},
}
GREY = "#808080"  # is 3:1 on both
# colour maps and the part of each that stands out from either page, from few to many: of counts, of chunks
MAPS = {
    "light": (("viridis", 0.53, 0.0), ("plasma", 0.58, 0.0)),
    "dark": (("viridis", 0.42, 1.0), ("plasma", 0.48, 1.0)),
}
_METHODS = ("fedavg", "augerino", "partitioned", "fedex", "fjord", "fedrolex", "heterofl")


def places(methods: Iterable[str]) -> dict[str, int]:
    """A place in :data:`COLOURS` and :data:`MARKERS` for each method: the same one in every picture.

    fedpart's federated methods have their own, whatever else is drawn; others take, by their names, what
    those of the picture leave free.
    """
    wanted = list(methods)
    found = {method: _METHODS.index(method) for method in wanted if method in _METHODS}
    free = [i for i in (7, *range(7)) if i not in found.values()] or list(range(len(COLOURS)))
    for i, method in enumerate(sorted(set(wanted) - found.keys())):
        found[method] = free[i % len(free)]
    return {method: found[method] for method in wanted}


def stops(theme: str, which: int, number: int) -> list[str]:
    """So many colours of a theme's map of counts (0) or chunks (1), from few to many, as ``#rrggbb``."""
    from matplotlib import colormaps
    from matplotlib.colors import to_hex

    name, low, high = MAPS[theme][which]
    step = (high - low) / max(1, number - 1)
    return [to_hex(colormaps[name](low + i * step)) for i in range(number)]
