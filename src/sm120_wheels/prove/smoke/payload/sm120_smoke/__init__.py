"""What is put beside the wheels under test: the cases, and the worker that launches them. Imports nothing but torch."""
