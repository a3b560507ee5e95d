"""nbpipe.DataLoader: the constructor of torch's loader over a pipeline."""
