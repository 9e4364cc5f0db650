"""PSRO by tasks: what computes them, here or in processes on one machine or several, and who says what is next."""
