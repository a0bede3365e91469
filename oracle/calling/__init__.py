"""One call of an implementation, and everything around it that tells on a kernel.

``call`` has the only lines in which an implementation's code runs, ``once`` a whole call as the judge wants it: in
``memory`` that is poisoned and guarded, with the ``globals`` of the process put back afterwards. ``place`` says where
in a user's file an exception comes from.
"""
