"""A call with its tensors taken out, so that it can be run on other values, for other sizes and numbers of records."""
