"""One base of all errors of operation; classes by how one reacts to them."""


class JobstreamError(Exception):
    """Says what is wrong, of which thing, and what to do. Commands print it without a stack trace."""


class ConfigurationError(JobstreamError):
    """Settings that cannot work or cannot be safe: do not start."""


class Unavailable(JobstreamError):
    """Kafka, Postgres, the API or the log store does not answer: try again with back-off."""


class LeadershipLost(JobstreamError):
    """Another process leads, or may: throw the state away and join again."""


class LogBroken(JobstreamError):
    """The log has a gap, a repeat or an unreadable record: stop that partition and raise an alarm."""
