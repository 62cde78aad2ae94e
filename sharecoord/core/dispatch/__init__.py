"""Who gets how much: fair parts, pace, rates, schedules, pauses."""
