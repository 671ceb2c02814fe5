"""Build, prove and publish CUDA kernel wheels for NVIDIA SM120 and SM121 GPUs."""

__version__ = "0.1.0"
