"""The serving core: sequences, blocks, schedulers, tenancy and what is measured of them."""
