"""Lanes and replays: dead letters that are delivered again."""
