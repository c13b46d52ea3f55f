"""The typed configuration of a run: its schema, how it is read from YAML and `key=value`, and the packaged recipes."""
