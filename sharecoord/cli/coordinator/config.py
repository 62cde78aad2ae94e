"""`sharecoord config show`: the configuration that `serve` would run with."""

from __future__ import annotations

import os
from pathlib import Path

import click

from sharecoord.cli.options import FILE, output_options
from sharecoord.cli.output import Column, Output, columns, note

_COLUMNS = columns(
    "setting=key value", Column("SOURCE", "source", lambda row: row.source.value), "place"
)


@click.group()
def config() -> None:
    """Show the configuration of a coordinator."""


@config.command()
@click.option("--config", "config_file", type=FILE, help="YAML file, as for serve.")
@click.option("--kafka-config", type=FILE, help="File of Kafka client keys, as for serve.")
@click.option("--effective", is_flag=True, help="Every setting, those left at default too.")
@output_options
def show(
    config_file: Path | None,
    kafka_config: Path | None,
    effective: bool,  # noqa: FBT001 - Click calls by name
    output: Output,
) -> None:
    """Show the merged settings with their source: file, environment or default.

    Secrets are masked. Without --effective only what somebody set.
    """
    from sharecoord.config.process import load
    from sharecoord.config.sources import Source

    loaded = load(config_file, os.environ, {}, kafka_config=kafka_config)
    for warning in loaded.warnings:
        note(f"sharecoord: {warning}")
    rows = [row for row in loaded.effective() if effective or row.source is not Source.DEFAULT]
    output.show(_COLUMNS, rows)
    if not rows:
        note("nothing is set: every setting has its default; `--effective` shows them all")
