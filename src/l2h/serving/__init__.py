"""The server: the Open Inference Protocol (V2) over HTTP, with keys, quotas, a ledger, and batches.

``l2h serve BUNDLE`` is :class:`l2h.serving.process.supervisor.Supervisor`, which keeps workers
(:mod:`l2h.serving.process.worker`) alive. In a worker a request goes this way:

    connection -> app -> infer: key, memory -> batching: one model call -> charging: one transaction -> answer
"""
