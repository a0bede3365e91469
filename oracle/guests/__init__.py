"""What users bring: callables of their own, the contracts they declare, configs of models that are not shipped."""
