"""The thresholds of a comparison, each with its reason or the data that set it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True)
class Policy:
    """Shares are of the base's step unless something else is said."""

    material_share: float = 0.02
    """A smaller cost is noise: two runs of one job differ by as much (docs/results.md)."""

    shown_share: float = 0.005
    """A smaller cell is part of the rest."""

    late_share_of_worst: float = 0.5
    """A rank belongs to the late ones from this share of the worst one's excess on."""

    sure_errors: float = 3.0
    """A mean is surely larger by more than so many of its standard errors: 99.7 % of a normal."""

    long_spreads: float = 6.0
    """Long steps form a class of their own if it is so many spreads of the others away."""

    long_share: float = 0.05
    """And if they are longer by this share of a step: smaller ones are not worth a cell."""

    fewest_long: int = 3
    """Two long steps have any period, and may be chance."""

    most_rare_share: float = 0.25
    """If more of the steps are long, they are not rare."""

    same_period_share: float = 0.8
    """Long steps have a period if so many of them are in it, and so many of its steps are long."""

    level_share: float = 0.95
    """Long steps are a level if so many steps are on the side of the change that they belong to."""

    rising_share: float = 0.7
    """A lasting change makes the later of two tenths longer in so many pairs; chance makes half."""

    level_errors: float = 8.0
    """A change of level is so many standard errors large: the best of all places is tried."""

    fewest_of_level: int = 8
    """A level lasts so many steps at least."""

    tenths: int = 10
    """A run is cut into so many blocks to see if its steps grow (`analysis/trend.py`)."""

    same_bytes_ratio: float = 1.2
    """Messages that carry up to this many times the bytes carry the same gradients or weights."""

    more_ratio: float = 1.2
    """A number that is larger by this factor explains time; runs of one job differ by less."""

    most_power: float = 2.0
    """Work grows with at most the square of its size, as attention does with the length."""

    more_collectives: float = 0.9
    """A call in nearly every step is a call per step."""

    many_ratio: float = 2.0
    """So many times as many messages for the same bytes are small ones."""

    often_ratio: float = 1.5
    """What is done so many times as often is done more often in each step."""

    added_copies: float = 2.0
    """A step that copies so many more values to the host waits for the device at each."""

    added_late_share: float = 0.1
    """The device waits for launches if it is idle for them for this much more of its time."""

    short_ratio: float = 0.8
    """Calls are smaller ones if their mean is shorter than this share of the base's."""

    added_worker_cores: float = 0.15
    """Workers are in the step's way from so many cores more on."""

    certain: float = 0.975
    """A change is certain from this probability on."""

    probable: float = 0.8
    """A change is probable from this probability on."""

    twins_floor: float = 0.005
    """Healthy twins differ by so much besides the scatter of their steps (docs/calibration.md)."""

    twins_errors: float = 2.2
    """So many of their errors apart are at most 2 % of healthy twins (docs/calibration.md)."""

    twins_most_error: float = 0.01
    """A larger scatter of steps says nothing more of the runs (docs/calibration.md)."""

    most_slowdown: float = 3.0
    """A busy machine makes a job take up to so many times as long (docs/results.md)."""

    quiet_share: float = 0.08
    """A quiet machine of its own may make work of the host take longer by this share."""

    virtual_share: float = 0.25
    """The same for a virtual machine: nothing shows what else its host does (docs/results.md)."""

    most_of_earlier: float = 1.0
    """Earlier runs that differ by more are of a job that was changed in between."""

    probe_noise: float = 0.05
    """Two probes of a quiet machine differ by less than this share."""

    most_waiting: float = 2.0
    """Each core that others use keeps so many threads of the job waiting, at most, on average."""

    clear_with_gap: float = 0.15
    """If the target is surely slower, the interval of a cost must begin above this share of it.

    Rules look at many things, so some of them look like a cause by chance.
    """

    clear_without_gap: float = 1 / 3
    """The same if the target is not surely slower: then chance is behind more of the costs."""

    hidden_input_share: float = 0.25
    """If less than this share of a longer wait for data is in the total, other work hid it."""

    evident_share: float = 0.05
    """What no machine makes is a change by itself from this share of a step on."""

    carried_share: float = 0.5
    """What no machine makes carries a verdict if it is this share of the change."""

    how_share: float = 0.7
    """A cell is told as blocked, or as computing, from this share on."""

    place_share: float = 0.5
    """A line, or a place between phases, is told if it makes this share of its cell."""

    fewest_samples: int = 5
    """A line of a cell is told from so many samples on that are beyond what is usual."""


POLICY: Final = Policy()
"""The thresholds that all comparisons use."""
