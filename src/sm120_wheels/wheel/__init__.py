"""Wheels as files: reading anybody's safely, and finishing ours (version, tags, metadata, SBOM, archive)."""
