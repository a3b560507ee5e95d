"""Tests of `nbpipe.profile`."""
