"""The oracle: is it right, and if not, where and why not? One loop, ``check.check``; everything else composes it.

::

    what is checked    case, geometry, verdict, operators    the records that everything else is made from
                       config, policies                      models' dimensions, engines' dated routing rules
                       suites, strategies                    which cases: literal tables, or drawn by Hypothesis
    how                inputs -> calling -> judge            tensors, a guarded call, the arithmetic of the verdict
                       sequence, properties                  calls after the first; relations without a reference
                       guests, sanitize, interchange         kernels of users; races on a GPU; other projects' traces
    a failure          cause, shrink, diagnose, bundle       what it is, the smallest, why, on disk
                       bisect, compare, campaign             what brought it, who is off, a search for more
    a layer            layer, routes, graphs, replay         its contract, its decisions, captured steps, incidents
                       engines, bringup                      real engines beside ours; a new model from its config
    the oracle itself  faults, audit                         planted defects, and which check kills which
    where and how told fleet, records, reports, cli          processes and clusters, files between runs, what people see
                       testing, pytest_plugin                the same in tests of one's own
    what can run       facts, value_range, environment, device, doctor, features
"""
