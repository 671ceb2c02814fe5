"""Compiles within memory: every translation unit is admitted by what it needs.

``session`` is the way in; ``broker`` decides for a whole host with the pure code of ``policy``; ``launcher`` stands
in front of each compiler. Nothing here knows about recipes or wheels.
"""
