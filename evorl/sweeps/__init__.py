"""Sweeps: trainings with other numbers, one after the other or side by side, whose results say which to try next."""
