"""Durability (README.md): a journal of what comes in, snapshots over it, and the way back at start. Imported only where it is on."""
