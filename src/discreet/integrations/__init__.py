"""Private training inside other libraries. Each module needs an extra and uses only the public names of discreet."""
