"""Files in and out: traces become requests, runs become tables, figures and reports."""
