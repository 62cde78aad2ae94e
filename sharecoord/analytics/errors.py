"""Errors of the jobs on the event log; each message names the thing and the fix."""

from __future__ import annotations

from sharecoord.errors import SharecoordError


class AnalyticsError(SharecoordError):
    """A job on the event log can not be done; base of the others."""

    reason = "ANALYTICS"


class SparkMissingError(AnalyticsError):
    """pyspark or Java is not there, or too old."""

    reason = "SPARK_MISSING"


class SparkUnavailableError(AnalyticsError):
    """The Spark master does not answer."""

    reason = "SPARK_UNAVAILABLE"
    retriable = True


class EventsNotFoundError(AnalyticsError):
    """The folder is not there, empty, or has no events in the range."""

    reason = "EVENTS_NOT_FOUND"


class EventsCorruptError(AnalyticsError):
    """A file of the event log can not be read.

    Attributes:
        path: The file.
    """

    reason = "EVENTS_CORRUPT"

    def __init__(self, message: str, path: str) -> None:
        super().__init__(message)
        self.path = path


class EventsTwiceError(AnalyticsError):
    """Two files of the event log have the same events, which would count twice."""

    reason = "EVENTS_TWICE"


class JobFailedError(AnalyticsError):
    """Spark gave up for a reason that has nothing to do with the events."""

    reason = "JOB_FAILED"
