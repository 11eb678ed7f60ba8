"""HTTP and the command line. Nothing here knows how a run works inside."""
