"""Report of a run: read from its folder, judged, and drawn."""
