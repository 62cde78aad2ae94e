"""Tests of the SDK: its rules, both shells against a scripted coordinator, the twin."""
