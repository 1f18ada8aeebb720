"""The commands: their options, inputs and outputs, and reports."""
