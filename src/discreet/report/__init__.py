"""Rendering: values to a page, figures and the terminal."""
