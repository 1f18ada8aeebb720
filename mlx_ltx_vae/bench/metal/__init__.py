"""The questions that only a Mac can answer: which convolutions, dtypes, steps and cache limits its GPU wants."""
