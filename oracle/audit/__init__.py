"""The oracle judged: which faults it kills, with which checks, and how often it rejects what is right.

``plan`` says what is to be run, ``trial`` runs one fault or one right kernel, ``journal`` remembers what was run,
``result`` counts, ``committed`` and ``readme`` keep the figures that the project states about itself.
"""
