"""Kits and the simulator: what any store, provider or change to the core must pass. Shipped."""
