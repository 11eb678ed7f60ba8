"""What a durable agent run is, without Ray and without HTTP.

`core` is pure (values in, decisions out), `engine` wraps it in asyncio, `ports` says what the engine asks of the
world, and `stores`, `sandboxes` and `harnesses` answer. `testing` ships the kits that any other answer must pass.
"""
