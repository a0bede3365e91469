"""Where judgements run: one small protocol, so that a worker pool and a cluster serve the same commands.

``protocol`` says what an engine is, ``feed`` hands it jobs and takes answers, each exactly once; the local engine is
``pool``, the one on Ray ``cluster``. ``calls`` and ``ray_calls`` are for work beside the judgements.
"""
