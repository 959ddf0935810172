"""The experts of a layer: where each of them lies, and grouped GEMMs over rows sorted by expert.

Which address an expert's weights have is looked up in a table on the device, which changes when experts are
offloaded or staged. The work is the same from everywhere: the same rows in the same order, so the same bits.
"""
