"""Ray: names, options, placement, handles. The rules of a run are in `runtime`."""
