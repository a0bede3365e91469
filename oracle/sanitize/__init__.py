"""NVIDIA's compute-sanitizer over the Triton kernels: ``tool`` runs it, ``target`` is what runs under it, ``parse``
reads its report, ``judge`` makes verdicts of that."""
