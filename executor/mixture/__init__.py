"""A mixture of experts on a device: plan, serving and forward, as those of dense models beside this package."""
