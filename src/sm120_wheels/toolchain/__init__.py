"""The tools of a build: Python environments, the CUDA toolkit, the host compiler, NUMA; each verified and recorded."""
