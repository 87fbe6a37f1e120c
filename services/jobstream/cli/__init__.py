"""The `jobstream` command. It speaks to the API over HTTP, starts services and local stacks, and provisions topics.

It may never write an event itself, read the projection's tables, or import at start what the command at hand does not need.
"""
