"""The live view: a picture in a terminal, lines everywhere else."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Final

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from sharecoord.core.states import RecordState
from sharecoord.demo.director import Scene, Screen
from sharecoord.demo.window_view import WindowRange, WindowState

PROGRESS_EVERY_S: Final = 1.0
STRIP_ROWS: Final = 3
STRIP_WIDTH_MAX: Final = 120
EVENTS_SHOWN: Final = 10
EVENTS_MIN: Final = 2
BAR_WIDTH: Final = 10
WORKER_WIDTH: Final = BAR_WIDTH + 14
OTHER_LINES: Final = 15
"""Lines of the picture that are neither a worker's nor an event's."""

# A cell of the strip stands for several records and shows the least of these numbers among them.
ACQUIRED, DUE, DELAYED, ARCHIVED, NEW, ACCEPTED, EMPTY = range(7)
STYLES: Final = {
    ACQUIRED: ("█", "yellow", "with a worker (locked)"),
    DUE: ("█", "red", "due again"),
    DELAYED: ("█", "blue", "waits for its retry"),
    ARCHIVED: ("█", "magenta", "archived"),
    NEW: ("▒", "white", "not handed out yet"),
    ACCEPTED: ("█", "green", "accepted"),
    EMPTY: ("·", "bright_black", "not produced yet"),
}


def _kind(each: WindowRange) -> int:
    match each.state:
        case RecordState.ACQUIRED:
            return ACQUIRED
        case RecordState.AVAILABLE:
            return DELAYED if each.delayed else DUE
        case RecordState.ACKNOWLEDGED:
            return ACCEPTED
        case RecordState.ARCHIVING | RecordState.ARCHIVED:
            return ARCHIVED


def states(window: WindowState, archived: dict[int, str], log_end: int, records: int) -> list[int]:
    """The kind of each record of the log, by offset; a number of `STYLES`."""
    cells = [ACCEPTED] * min(window.end_offset, records)
    cells += [NEW] * (min(log_end, records) - len(cells))
    cells += [EMPTY] * (records - len(cells))
    for offset in archived:
        if offset < window.end_offset:
            cells[offset] = ARCHIVED
    for each in window.ranges:
        last = min(each.last, records - 1)
        cells[each.first : last + 1] = [_kind(each)] * (last + 1 - each.first)
    return cells


def squeeze(cells: list[int], width: int) -> list[int]:
    """Brings cells down to `width` at most; each shows the most notable of those it stands for."""
    step = max(1, -(-len(cells) // max(width, 1)))
    return [min(cells[at : at + step]) for at in range(0, len(cells), step)]


class RichScreen:
    """A picture that is drawn again and again."""

    def __init__(self, live: Live, console: Console, records: int) -> None:
        self._live = live
        self._console = console
        self._records = records
        self._events: list[str] = []

    def event(self, text: str, elapsed_s: float) -> None:
        """Adds a line below the picture."""
        self._events.append(f"{elapsed_s:5.1f} s  {text}")

    def show(self, scene: Scene) -> None:
        """Draws the picture."""
        columns = max(1, (self._console.width - 4) // (WORKER_WIDTH + 2))
        rows = -(-len(scene.tally.joined) // columns)
        # What does not fit is cut off at the bottom, where the last event is.
        room = self._console.height - OTHER_LINES - rows
        events = self._events[-min(max(room, EVENTS_MIN), EVENTS_SHOWN) :]
        parts: list[RenderableType] = [
            self._head(scene),
            self._strip(scene),
            Text("Workers: how many records each has handled, + how many it holds"),
            _workers(scene, rows),
            Text("\n".join(events), overflow="ellipsis", no_wrap=True),
        ]
        self._live.update(Panel(Group(*parts), title="sharecoord demo"), refresh=True)

    def _head(self, scene: Scene) -> Text:
        state = ("coordinator up", "green") if scene.coordinator_up else ("coordinator DOWN", "red")
        lag = scene.window.lag(scene.log_end)
        return Text.assemble(
            (f"{scene.title}\n", "bold"),
            (f"{scene.elapsed_s:.0f} s   ", ""),
            state,
            f"   in the log {scene.log_end} of {self._records}"
            f"   processed {len(scene.tally.accepted)}   lag {lag}\n",
        )

    def _strip(self, scene: Scene) -> Text:
        width = min(self._console.width - 4, STRIP_WIDTH_MAX)
        cells = states(scene.window, scene.archived, scene.log_end, self._records)
        window = scene.window
        strip = Text(
            "The partition as the store has it; the window is "
            f"{window.start_offset} to {window.end_offset}:\n"
        )
        for at, cell in enumerate(squeeze(cells, width * STRIP_ROWS), start=1):
            sign, style, _ = STYLES[cell]
            strip.append(sign, style)
            if at % width == 0:
                strip.append("\n")
        strip.append("\n")
        for sign, style, meaning in STYLES.values():
            strip.append(sign, style)
            strip.append(f" {meaning}  ")
        return strip.append("\n")


def _workers(scene: Scene, rows: int) -> Table:
    """Each worker's share as a bar, and how many records it holds."""
    table = Table.grid(padding=(0, 2))
    names = sorted(scene.tally.joined)
    most = max(scene.tally.handled.values(), default=1)
    for row in range(rows):
        table.add_row(*(_worker(scene, name, most) for name in names[row::rows]))
    return table


def _worker(scene: Scene, name: str, most: int) -> Text:
    done = scene.tally.handled[name]
    bar = "█" * round(BAR_WIDTH * done / most)
    if name in scene.dead:
        return Text.assemble((f"{name} {bar:<{BAR_WIDTH}}", "red"), f"{done:4} dead")
    holds = len(scene.tally.in_hand[name])
    return Text.assemble(f"{name} ", (f"{bar:<{BAR_WIDTH}}", "cyan"), f"{done:4} +{holds}")


class PlainScreen:
    """A view in lines: one for each event, and one each second about the progress."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._next_s = 0.0

    def event(self, text: str, elapsed_s: float) -> None:
        """Prints the line of an event."""
        self._print(elapsed_s, text)

    def show(self, scene: Scene) -> None:
        """Prints a line when a second has gone by."""
        if not scene.log_end or scene.elapsed_s < self._next_s:
            return
        self._next_s = scene.elapsed_s + PROGRESS_EVERY_S
        held = sum(
            each.last - each.first + 1
            for each in scene.window.ranges
            if each.state is RecordState.ACQUIRED
        )
        self._print(
            scene.elapsed_s,
            f"  in the log {scene.log_end}, processed {len(scene.tally.accepted)}, "
            f"locked {held}, archived {len(scene.archived)}, "
            f"lag {scene.window.lag(scene.log_end)}",
        )

    def _print(self, elapsed_s: float, text: str) -> None:
        self._console.print(
            f"{elapsed_s:5.1f} s  {text}", markup=False, highlight=False, soft_wrap=True
        )


@contextlib.contextmanager
def open_screen(console: Console, *, plain: bool, records: int) -> Iterator[Screen]:
    """The picture in a terminal; lines without one, or when `plain` asks for them."""
    if plain or not console.is_terminal:
        yield PlainScreen(console)
        return
    with Live(console=console, auto_refresh=False, vertical_overflow="crop") as live:
        yield RichScreen(live, console, records)
