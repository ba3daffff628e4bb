"""As much of Numba as a manager of its memory sees."""
