"""The vocoders of LTX-2 and later: mel spectrograms to waveforms."""
