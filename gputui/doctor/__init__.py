"""Whether this machine is fit for training: what is read of it, and pure judgements of that."""
