"""What is known about wheels before they go out: one table for a CI run, and one of everything that must be green."""
