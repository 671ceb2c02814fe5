"""Compiler caches: a compile that was done before, here or on another machine, is not done again.

``setup`` puts ccache or sccache in front of a build's compilers and says afterwards what it answered. The caching
itself is theirs; this package makes their keys true for nvcc and the same on every machine (``front``, ``identity``),
brings a shared store to builds that have no network (``gateway``, ``stores``), and counts (``stats``).
"""
