"""Dense references, and the comparison of every algorithm with them: python -m seqpar.testing.parity."""
