"""The compile stage: backends that drive upstream's own build, and the scheduler that keeps it within memory."""
