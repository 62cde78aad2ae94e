# Everything a person types. `make help` lists the targets.
