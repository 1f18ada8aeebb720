"""Streams, which run a clip through a network in pieces along one axis, with caches in each layer."""
