"""The REST API. Reads the projection, the log store and its own keys; writes commands to `submissions`, and tenants and keys.

It may never decide anything about a job, and never write what the projector writes.
"""
