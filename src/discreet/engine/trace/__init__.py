"""What a forward pass calls: watching it, and taking composite functions apart."""
