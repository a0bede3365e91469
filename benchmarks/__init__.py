"""Timing of implementations and of the oracle itself; refuses to time what fails its check.

::

    bench/                       what ``attnoracle bench`` runs
    gpu_*.sh                     everything for a machine with a GPU, each a table or a folder of ``results/``
    own_speed, peak              the oracle's own speed and memory; verify_production: one production case on a GPU
    topk_alone, probe_peers      against bare ``torch.topk``; what the contracts of public kernels were read from
    graph_agreement, bundles     emulated against real graphs; bundles made on a GPU and replayed elsewhere
    hidden_faults, campaign_scale  what a campaign finds, and how it grows
    browser, screenshots         pages in headless Chromium, and the pictures of the documentation
    build_flashinfer, condense   compile ahead of a run; reports small enough to commit
    results/, NOTES.md           what was measured, and what is behind the figures
"""
