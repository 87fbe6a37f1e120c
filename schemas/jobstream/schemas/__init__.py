"""The contracts: ids, resources, states, commands, events, envelope, codec. Imports nothing else of jobstream."""
