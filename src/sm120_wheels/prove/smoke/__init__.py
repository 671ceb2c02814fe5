"""Launches what a wheel registers, on a real GPU, against a reference, under a watchdog.

Two sides. The controller (this package) runs pytest, keeps the deadlines and writes the record; it never imports torch.
The worker runs in the environment under test, which holds the wheels and the torch they name and nothing of ours but
``payload/``, put at the end of its search path: the cases and the code that launches them.
"""
