"""The cases of `runtime.testing.store_kit`, one file per question that they put to a store."""
