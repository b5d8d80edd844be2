"""Modules that every other room uses; imports none of the other rooms."""
