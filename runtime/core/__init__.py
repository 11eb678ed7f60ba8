"""The pure rules: no asyncio, no clock, no randomness, no files, no logging. Start at `machine.py`."""
