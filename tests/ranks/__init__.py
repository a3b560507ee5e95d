"""Jobs of several processes, joined by gloo."""
