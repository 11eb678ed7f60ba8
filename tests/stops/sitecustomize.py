"""Python imports this at the start of each process that has this folder on PYTHONPATH: see `stops/stopping.py`."""

import os

if "STOPS_DIR" in os.environ:
    from stops import stopping

    stopping.install(os.environ["STOPS_DIR"])
