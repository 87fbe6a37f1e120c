"""The local stack: Kafka and PostgreSQL from PyPI and, when asked for, every jobstream service, owned by one supervisor.

It may never be part of a production service, never open what it runs to other users, and never leave a process behind.
"""
