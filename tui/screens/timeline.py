"""Timeline: ranks over time, with phases, kernels by stream, collectives and counters."""

from __future__ import annotations

from typing import ClassVar, Final

from textual.binding import Binding, BindingType

from profkit.errors import UsageError
from profkit.text import duration
from profkit.tui.timeline.canvas import Canvas
from profkit.tui.timeline.jump_screen import STEP_SHARE, JumpScreen
from profkit.tui.timeline.words import event_lines, parse_time
from profkit.tui.widgets.ask import Facts

ZOOM_IN, ZOOM_OUT = "move('zoom', 0.5)", "move('zoom', 2.0)"
"""The actions of the keys that halve and double the time in view."""

WHEEL_ZOOM: Final = 1.25
"""The wheel zooms in smaller steps, because it is turned by several at once."""


class TimelineScreen(JumpScreen):
    """A timeline with the keys and the mouse that move its view and its cursor."""

    NAME = "timeline"
    KEY = "2"
    TITLE = "Timeline"
    KEEPS_UP = True

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("left,h,a", "move('pan', -1)", "earlier", show=False),
        Binding("right,l,d", "move('pan', 1)", "later", show=False),
        Binding("up,k", "move('move_row', -1)", "row above", show=False),
        Binding("down,j", "move('move_row', 1)", "row below", show=False),
        Binding("plus", ZOOM_IN, "zoom in", key_display="+"),
        Binding("equals_sign", ZOOM_IN, "zoom in", show=False, key_display="="),
        Binding("w", ZOOM_IN, "zoom in", show=False),
        Binding("minus", ZOOM_OUT, "zoom out", key_display="-"),
        Binding("s", ZOOM_OUT, "zoom out", show=False),
        Binding("0", "move('fit')", "whole run", show=True),
        Binding("shift+left", "move('move_cursor', -1)", "cursor left", show=False),
        Binding("shift+right", "move('move_cursor', 1)", "cursor right", show=False),
        Binding("pageup", "move('pan', -8)", "one screen earlier", show=False),
        Binding("pagedown", "move('pan', 8)", "one screen later", show=False),
        Binding("home", "end(0)", "first step", show=False),
        Binding("end", "end(-1)", "last step", show=False),
        Binding("g", "go_to", "go to"),
        Binding("slash", "filter", "find", key_display="/"),
        Binding("f", "filter", "find", show=False),
        Binding("comma", "event(-1)", "previous event", show=False, key_display=","),
        Binding("full_stop", "event(1)", "next event", show=False, key_display="."),
        Binding("greater_than_sign", "gap(1)", "next gap", key_display=">"),
        Binding("less_than_sign", "gap(-1)", "previous gap", show=False, key_display="<"),
        Binding("L", "late(1)", "late rank"),
        Binding("H", "late(-1)", "previous late rank", show=False),
        Binding("c", "change(1)", "next change", show=False),
        Binding("C", "change(-1)", "previous change", show=False),
        Binding("m", "at_least", "minimum duration", show=False),
        Binding("v", "rows_shown", "phases, kernels or collectives of each rank", show=False),
        Binding("x,space", "move('expand')", "open or close the rank", show=False),
        Binding("z", "details('zoom')", "zoom to the event", show=False),
        Binding("enter", "details", "details"),
    ]

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Disable the timeline's keys until a timeline is open."""
        if self.sight is None and action in _OWN_ACTIONS:
            return False
        return super().check_action(action, parameters)

    def action_move(self, method: str, *by: float) -> None:
        """Call a method of `Sight`, which moves the view or the cursor, and draw the result."""
        getattr(self.seen, method)(*by)
        self.redraw()

    def action_rank(self, by: int) -> None:
        """Open the next rank."""
        sight = self.sight
        if sight is None or len(sight.timeline.ranks) < 2:
            self.tell("the run has one rank")
            return
        ranks, rank = sight.timeline.ranks, sight.expanded
        if rank is None:
            rank = sight.here.rank if sight.here else ranks[0]
        sight.open_rank(ranks[(ranks.index(rank) + by) % len(ranks)], self.canvas.room)
        self.redraw()

    def action_rows_shown(self) -> None:
        """Show phases, devices or collectives in the rows of ranks, in turn."""
        self.seen.show_next_group()
        self.tell(f"each rank's row shows its {self.seen.group.value}")
        self.redraw()

    def action_at_least(self, text: str | None = None) -> None:
        """Exclude events that are shorter than a duration; without one, ask for it."""
        if text is None:
            value = ""
            if self.seen.at_least_ns:
                value = duration(self.seen.at_least_ns).replace(" ", "")
            question = "exclude events that are shorter than (20us; empty shows all)"
            self.prompt(question, self.action_at_least, value)
            return
        try:
            shortest_ns = parse_time(text) if text.strip() else 0
        except UsageError as error:
            self.tell(str(error))
            return
        self.seen.at_least_ns = shortest_ns
        self.seen.point_at(self.seen.column, None)
        words = "all events are shown"
        if shortest_ns:
            words = f"excluded: events shorter than {duration(shortest_ns)}"
        self.tell(words)
        self.redraw()

    def action_details(self, kind: str = "fields") -> None:
        """Show all fields of the event under the cursor, or `zoom` to it."""
        piece = self.seen.piece
        if piece is None:
            self.tell("no event here")
            return
        if kind == "zoom":
            self.seen.show_piece(piece, share=STEP_SHARE)
            self.redraw()
            return
        event = self.seen.timeline.event(*piece)
        if event is None:
            self.tell("the run's file can no longer be read")
        else:
            self.app.push_screen(Facts(event_lines(event)))

    def on_canvas_pointed(self, message: Canvas.Pointed) -> None:
        """Put the cursor under the mouse; pan with a sideways wheel, zoom with the other one."""
        if self.sight is None:
            return
        if message.sideways:
            self.sight.pan(message.by)
        else:
            self.sight.point_at(message.column, message.row)
            if message.by:
                self.sight.zoom(WHEEL_ZOOM**message.by)
        self.redraw()


_OWN_ACTIONS: Final = frozenset(
    binding.action.partition("(")[0]
    for binding in TimelineScreen.BINDINGS
    if isinstance(binding, Binding)
) | {"rank", "match"}

SCREEN = TimelineScreen
