"""The deployment of the sandboxes that tests make without an instance.

What a sandbox leaves is found, and ended, by its key, on the whole machine. With one name for all, the tests of two
checkouts, or of two processes of one run, would end each other's agents.
"""

from __future__ import annotations

import secrets

DEPLOYMENT = secrets.token_hex(16)  # of this process
