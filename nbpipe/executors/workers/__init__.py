"""Worker processes: their start, the channel to them, and how functions and errors cross it."""
