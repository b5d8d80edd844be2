"""Twins of `core/normals.py`: a compiled one for processors, and one in integer tensor operations for other devices."""
