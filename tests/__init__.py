"""Tests of nbpipe; the folders mirror those of the package."""
