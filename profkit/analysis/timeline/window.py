"""The stretch of time that a timeline shows, and the cells that it is cut into."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from profkit.frame.estimate import Ints


@dataclass(frozen=True)
class Window:
    """A stretch of the axis, and the cells that it is cut into."""

    start_ns: int
    end_ns: int
    columns: int

    @property
    def length_ns(self) -> int:
        return self.end_ns - self.start_ns

    @property
    def cell_ns(self) -> float:
        return self.length_ns / self.columns

    @property
    def borders(self) -> Ints:
        """The boundaries of the cells, which tile the window in whole ns."""
        # Divided first, because years times columns do not fit into 64 bits.
        each, rest = divmod(self.length_ns, self.columns)
        place = np.arange(self.columns + 1)
        return self.start_ns + place * each + place * rest // self.columns

    def moved(self, by_ns: int, bounds: tuple[int, int]) -> Window:
        """Return a window of the same length, later or earlier, and inside the bounds."""
        start = max(bounds[0], min(self.start_ns + by_ns, bounds[1] - self.length_ns))
        return Window(start, start + self.length_ns, self.columns)

    def zoomed(self, factor: float, about_ns: int, bounds: tuple[int, int]) -> Window:
        """Return a window `factor` times as long, with the moment `about_ns` in the same place.

        It is never longer than the bounds, and never shorter than a ns per cell.
        """
        length = max(self.columns, min(round(self.length_ns * factor), bounds[1] - bounds[0]))
        before = round((about_ns - self.start_ns) * length / max(1, self.length_ns))
        return Window(about_ns - before, about_ns - before + length, self.columns).moved(0, bounds)

    def around(
        self, start_ns: int, end_ns: int, bounds: tuple[int, int], share: float = 0.5
    ) -> Window:
        """Return a window in which a stretch takes a share of the room, in the middle."""
        whole = Window(start_ns, end_ns, self.columns)
        return whole.zoomed(1 / share, (start_ns + end_ns) // 2, bounds)

    def cell(self, column: int) -> tuple[int, int]:
        start, end = self.borders[column : column + 2]
        return int(start), int(end)

    def column_of(self, time_ns: int) -> int | None:
        """Return the cell that holds a moment; `None` if it is out of sight."""
        if not self.start_ns <= time_ns < self.end_ns:
            return None
        return int(np.searchsorted(self.borders, time_ns, side="right")) - 1
