"""Step times of private training against plain SGD and against peers, measured side by side (`discreet bench`)."""
