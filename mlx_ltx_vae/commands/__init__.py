"""What the commands share: their options, inputs and outputs, and reports."""
