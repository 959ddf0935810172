"""Configuration: YAML chooses, ``schema`` types, ``build`` turns it into frozen values; the only package with Hydra."""

from conf.compiled import use

use()  # here, so that every process that carries runs out does so, a worker that a launcher starts as well
