"""The same work done by nbpipe, by its peers and by bare loops; run `python -m benchmarks`."""
