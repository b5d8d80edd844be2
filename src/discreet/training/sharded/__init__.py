"""What the training of a sharded model needs besides that of a whole one."""
