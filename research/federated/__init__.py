"""Federated training on Flower: accuracy at a certified epsilon for every client, and bytes on the wire."""
