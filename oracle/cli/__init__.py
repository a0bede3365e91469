"""The command ``attnoracle``: one module a command."""
