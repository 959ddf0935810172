"""The report of a run, or of several beside each other, as one HTML file that needs nothing else."""
