"""Wheels as files: reading any wheel safely, and finishing ours (version, tags, metadata, SBOM, reproducible archive)."""
