import policies.engine as _  # noqa: F401  # before conf: in this process the plain modules, of which ours can inherit
