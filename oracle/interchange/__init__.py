"""Definitions, workloads and traces in the JSON of flashinfer-bench, read and written.

Source: the schema documentation of flashinfer-bench, ``docs/flashinfer-trace`` (definition, workload, trace) and
``docs/op-types``. A folder has their layout::

    definitions/<op_type>/<name>.json     what is computed: axes, inputs, outputs, a reference
    workloads/<op_type>/<name>.jsonl      one workload a line: sizes, and where the inputs lie
    traces/<op_type>/<name>.jsonl         one judged run a line
    blob/workloads/<op_type>/<name>/      tensors
"""

from .evaluate import evaluated
from .folder import add, write
from .jobs import Job, jobs
from .records import Definition, Evaluation, Trace, Workload

__all__ = ["Definition", "Evaluation", "Job", "Trace", "Workload", "add", "evaluated", "jobs", "write"]
