"""Reads its mailbox partition of `dispatch`; writes `machines`, `heartbeats`, `completions` and the output of attempts.
Never runs an attempt whose lease it does not trust, and never decides on a job: the leader alone does."""
