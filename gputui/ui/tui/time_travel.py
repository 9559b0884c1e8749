"""Time travel: the moment that is shown, and the actions that change it."""

from __future__ import annotations

import math
from functools import partialmethod

from msgspec.structs import replace

from gputui.ui.tui.data.feed import Feed
from gputui.ui.tui.data.snapshot import Moment, Snapshot
from gputui.ui.tui.layout.words import dated_clock
from gputui.ui.tui.shell import Shell

STEP_SECONDS = 10.0
"""One step in time: a bucket of the short histories."""

FAR_STEPS = 10


class TimeTravel:
    """Requests moments from the feed, and takes its snapshots. ``moment`` is the requested one and, once
    read, the actual one; None for the present."""

    def __init__(self, shell: Shell, feed: Feed) -> None:
        self._shell = shell
        self._feed = feed
        self.moment: Moment | None = feed.interest.moment

    def takes(self, snapshot: Snapshot) -> bool:
        """Take a newer snapshot; False if it is not of the requested moment."""
        past = snapshot.past
        if past is None and self.moment is not None and snapshot.trouble is None:
            # The feed has not read the moment yet; the present must not flash up in between.
            return False
        if past is not None and self.moment is None:
            return False
        if past is not None and past.asked == self.moment:
            self._arrive(past.asked, snapshot)
        return True

    def _arrive(self, asked: Moment, snapshot: Snapshot) -> None:
        at, past = snapshot.at, snapshot.past
        assert past is not None
        self.moment = Moment(at)
        if asked.ticks and at == asked.at:
            self._shell.say("Nothing happened before this." if asked.ticks < 0 else "Nothing happened after this.")
        elif not asked.ticks and asked.at < at and asked.direction <= 0:
            self._shell.say(f"The record begins here, at {dated_clock(at, past.now)}.")
        elif at >= past.now:
            self.do_live()

    def look_back(self, moment: Moment) -> None:
        """Show a past moment; a future one shows the present."""
        if moment.at >= self._now and not moment.ticks:
            if self.moment is not None:
                self.do_live()
            return
        self.moment = moment
        self._feed.look_back(moment)
        if self._shell.snapshot.past is not None and self._shell.snapshot.past.asked == moment:
            self._arrive(moment, self._shell.snapshot)

    @property
    def _now(self) -> float:
        past = self._shell.snapshot.past
        return self._shell.snapshot.at if past is None else past.now

    def _step(self, steps: int) -> None:
        here = self.moment or Moment(float(math.floor(self._now)))
        self.look_back(Moment(here.at + steps * STEP_SECONDS, direction=-1 if steps < 0 else 1))

    do_time_back = partialmethod(_step, -1)
    do_time_forth = partialmethod(_step, 1)
    do_time_back_far = partialmethod(_step, -FAR_STEPS)
    do_time_forth_far = partialmethod(_step, FAR_STEPS)

    def _tick(self, by: int) -> None:
        # Added to a request that was not read yet, so that two keys go two ticks.
        here = self.moment or Moment(self._now)
        self.look_back(replace(here, ticks=here.ticks + by, direction=0))

    do_tick_previous = partialmethod(_tick, -1)
    do_tick_next = partialmethod(_tick, 1)

    def do_live(self) -> None:
        self.moment = None
        self._feed.look_back(None)

    def do_time_type(self) -> None:
        from gputui.ui.tui.dialogs.questions import MomentScreen

        def go(at: float | None) -> None:
            if at is not None:
                self.look_back(Moment(at))

        self._shell.push_screen(MomentScreen(self._now), go)
