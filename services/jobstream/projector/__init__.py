"""Reads the log (`lifecycle`, `schedules`, `fleet`); writes rows and its own position, in one transaction, to Postgres.
May never write to Kafka, skip a record, or be what the leader waits for."""
