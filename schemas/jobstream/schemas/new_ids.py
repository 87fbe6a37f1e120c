"""Make new ids. Apart from `ids`, since this reads the clock and randomness."""

import uuid_utils


def new_job_id() -> str:
    """A fresh job id: UUIDv7, so that ids of one producer sort by the time they were made."""
    return str(uuid_utils.uuid7())


def new_event_id() -> str:
    """A fresh CloudEvents id."""
    return str(uuid_utils.uuid7())
