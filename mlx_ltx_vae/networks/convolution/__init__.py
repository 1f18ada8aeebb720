"""The 3x3x3 convolution: which of several equal formulations runs, and what each computes."""
