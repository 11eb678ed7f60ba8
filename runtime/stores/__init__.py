"""Durable stores, one per file; each passes `runtime.testing.store_kit`."""
