"""``python -m sm120_wheels``: the same as the ``sm120`` command."""

from sm120_wheels.cli import main

main()
