"""Step time and memory of private training against plain SGD and other libraries: `make bench`."""
