"""What operators should compute, in plain PyTorch at float32 or float64: written for these cases, from the definitions.

Nothing here launches a kernel of the package under test, and nothing changes its arguments.
"""
