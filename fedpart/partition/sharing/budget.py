"""A budget of numbers, and how many templates each bank gets of it."""

from __future__ import annotations

from collections.abc import Sequence


def allocated(sizes: Sequence[int], uses: Sequence[int], budget: int, most: int) -> list[int]:
    """Templates of each bank (SuperWeight Networks' code, ``_allocate_templates``).

    Each bank gets one; then, in turn, one more if it has fewer than layers use it; then one more in any case.

    Args:
        sizes: numbers of one template, by bank.
        uses: how many layers are composed of it.
        budget: of numbers, for all banks.
        most: templates that a bank can have.

    Raises:
        ValueError: the budget does not suffice for one each.
    """
    left = budget - sum(sizes)
    if left < 0:
        raise ValueError(
            f"The budget is {budget:,} numbers, but one template for each bank takes {sum(sizes):,}; "
            f"raise the budget, or let more layers share a bank (clusters: depth)."
        )
    found = [1] * len(sizes)
    for wants in (uses, [most] * len(sizes)):
        before: list[int] = []
        while found != before:
            before = list(found)
            for bank, size in enumerate(sizes):
                if found[bank] < min(wants[bank], most) and size <= left:
                    found[bank] += 1
                    left -= size
    return found
