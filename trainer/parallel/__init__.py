"""Distribution of model, gradients and optimizer over the ranks: strategies behind one interface.

In comes an objective and the world of ranks, out comes a `Strategy` that the loop steps without knowing which it is.
State goes in and out whole, by parameter name, so a run continues with another strategy or number of ranks. `build`
chooses; `collectives` has broadcasts and DTensor helpers. Read `strategy` first, then `ddp` and `fsdp`.
"""
