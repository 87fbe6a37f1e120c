"""What every service needs at its edges: settings, clocks, errors, Kafka and Postgres plumbing, start and stop."""
