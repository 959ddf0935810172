"""Trace files written: any file in one form (``convert``), and files made from fits (``make``)."""
