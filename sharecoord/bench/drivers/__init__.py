"""Programs that consume a topic once and print one JSON line: `python -m ….drivers.<name>`.

Each is a process of its own, so that its CPU time is its own and none disturbs another. All take
the options of `options.py` and measure with `meter.py`; they differ only in the consumer.
"""
