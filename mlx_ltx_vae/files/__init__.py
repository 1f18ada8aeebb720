"""Files: opened only if they are files, unchanged while they are read, and whole when they appear under a name."""
