"""Tests of the links between coordinators."""
