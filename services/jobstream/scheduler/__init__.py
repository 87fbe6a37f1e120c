"""The leader: reads the inboxes, decides in rounds, and alone writes `lifecycle`, `schedules`, `fleet`, `rounds`, `dispatch`.

It may never ask Postgres while it leads, never change state outside `evolve`, and never go on after a failed transaction.
"""
