"""The capture sensor: what a tick finds pending, what it decides, and the run that it requests."""
