"""Streams: a clip handed through a network in pieces along one axis, with what each layer remembers in between."""
