"""Which compiler cache a build uses: the values of one setting."""

from __future__ import annotations

from typing import Literal

Choice = Literal["auto", "ccache", "sccache", "off"]
CHOICES: tuple[Choice, ...] = ("auto", "ccache", "sccache", "off")
