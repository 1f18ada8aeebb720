"""This process as a command: its start, signals, and what it must not leave behind."""
