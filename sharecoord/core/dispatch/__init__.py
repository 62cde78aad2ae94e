"""Rules of dispatch: fair parts, pace, rates, schedules, pauses."""
