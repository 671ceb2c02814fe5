"""Publishes wheels into a static, immutable index for each CUDA version, and tells which wheel fits a machine."""
