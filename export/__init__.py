"""Turn a checkpoint into an engine directory. The only place for torch and transformers."""
