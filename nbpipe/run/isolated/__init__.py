"""The whole pipeline in a process of its own, behind what a run knows of its stages."""
