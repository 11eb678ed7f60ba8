"""Async shells around the core; they hold no rules of their own."""
