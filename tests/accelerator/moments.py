"""Points of time that may depend on work that no rank has enqueued yet."""

from __future__ import annotations

from collections.abc import Iterable


class Moment:
    """A time in ns: the latest of the moments it waits for, at least `floor`, plus `add`.

    A collective ends after the last rank has reached it, and that rank may not have got there yet:
    until then `ns` is `None`. `expected` moments are given later, by `arrive`.
    """

    __slots__ = ("_add", "_followers", "_latest", "_open", "ns")

    def __init__(
        self, after: Iterable[Moment] = (), *, floor: int = 0, add: int = 0, expected: int = 0
    ) -> None:
        self.ns: int | None = None
        self._latest = floor
        self._add = add
        self._open = expected + 1
        self._followers: list[Moment] = []
        for moment in after:
            self._open += 1
            self.arrive(moment)
        self._close(floor)

    def arrive(self, moment: Moment) -> None:
        """Take one of the expected moments; the last that is known settles this one."""
        if moment.ns is None:
            moment._followers.append(self)
        else:
            self._close(moment.ns)

    def _close(self, ns: int) -> None:
        """Count a known time; a loop, because thousands of kernels may wait for one collective."""
        waiting = [(self, ns)]
        while waiting:
            moment, known = waiting.pop()
            moment._latest = max(moment._latest, known)
            moment._open -= 1
            if moment._open == 0:
                moment.ns = moment._latest + moment._add
                waiting += [(follower, moment.ns) for follower in moment._followers]
                moment._followers.clear()
