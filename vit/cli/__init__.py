"""The `vit` command: one file per subcommand, imported only when called."""
