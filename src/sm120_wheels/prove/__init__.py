"""Proving a wheel: what is in it (audit), whether its code is a reference's (equivalence), whether it runs (smoke)."""
