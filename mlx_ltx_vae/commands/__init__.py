"""Shared parts of the commands: their options, inputs and outputs, and reports."""
