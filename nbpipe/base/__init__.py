"""What every room stands on: knobs, trees, threads, words. Nothing here knows a stage."""
