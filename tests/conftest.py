"""What every test gets; `lanes` says which tests run here at all."""

import signal

from hypothesis import settings

pytest_plugins = ["lanes", "instances"]

# A busy machine is no failure: a hang is caught by the timeout of each test, and speed is the benchmark's matter.
settings.register_profile("outlast", deadline=None)
settings.load_profile("outlast")

# A shell that starts the tests in the background has them ignore SIGINT, and every program that they start would too.
signal.signal(signal.SIGINT, signal.default_int_handler)
