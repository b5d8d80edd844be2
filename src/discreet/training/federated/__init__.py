"""Training by contributions that clients compute."""
